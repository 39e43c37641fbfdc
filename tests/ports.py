"""Ports for the tests that must name one."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_HOST = "127.0.0.1"
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def unasked_port() -> int:
    """A free port that is given to nobody who asks the system for any.

    A test that lets a port go and has it bound again later finds it taken where the system gave it
    to a server of the other worker meanwhile.
    """
    with contextlib.suppress(OSError, ValueError):
        for port in random.sample(range(20_000, int(_RANGE.read_text().split()[0])), 100):
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind((_HOST, port))
                return port
    with socket.socket() as probe:  # a system that gives all of them
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port at which nobody listens, and nobody will: it stays bound for the block."""
    with socket.socket() as held:
        held.bind((_HOST, 0))
        yield int(held.getsockname()[1])
