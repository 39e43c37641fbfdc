"""Runs a query that a model wrote on a small database, and survives it.

The database is made in memory from the suite's script, once, and every query gets a copy of it with
a connection of its own, so that queries may run in several threads and none can change what the
next one sees. The query is a model's and may be anything. It is held by

- SQLite's authorizer: it may select, read, call functions and recurse; nothing else (no ATTACH, no
  PRAGMA, no write, no extension, no `random`, whose result could not be compared);
- SQLite's own limits: 100,000 bytes for a value and a query, 256 MiB of memory;
- a guard before the two functions that make one step long (a width of millions in `printf`, a long
  set of characters in `trim`), as nothing can stop SQLite inside a step;
- a number of virtual machine steps, `seconds` x 10 million, so that what runs out runs out on every
  machine alike; `seconds` of the wall clock end it too where the machine is slower than that;
- 10,000 rows.

`now` is 2026-01-01 00:00:00 UTC in the script and in the queries: a result that depends on the day
it was computed could not be scored again.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

NOW = "2026-01-01 00:00:00"

_STEPS_A_SECOND = 10_000_000
_STEPS_A_CALL = 10_000
_SCRIPT_SECONDS = 30.0
_MOST_ROWS = 10_000
MOST_BYTES = 100_000
_MOST_MEMORY = 256 << 20
_QUERY_MAY = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)
_SCRIPT_MAY_NOT = frozenset(
    {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH}
    | {sqlite3.SQLITE_CREATE_VTABLE, sqlite3.SQLITE_DROP_VTABLE}
)
#: What `sqlite3 .dump` writes, and what has no effect beyond the database.
_SCRIPT_PRAGMAS = frozenset({"foreign_keys", "encoding", "user_version"})
_NO_FUNCTION = frozenset({"load_extension", "fts3_tokenizer", "random", "randomblob"})
_CLOCK = ("date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff")
#: Functions of SQLite that are guarded, with their number of arguments (-1: any).
_GUARDED = {"printf": -1, "format": -1, "trim": 2, "ltrim": 2, "rtrim": 2}
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|[0-9]{4})")
_MOST_TRIMMED = 100
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MOST_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MOST_BYTES,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 100_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
Row = tuple[Any, ...]


class Result(NamedTuple):
    """What a query gave.

    Attributes:
        columns: how many.
        rows: in the order they came.
        error: why there is no result; empty where there is one.
    """

    columns: int
    rows: Sequence[Row]
    error: str = ""


def run_query(script: str, query: str, seconds: float) -> Result:
    """Run a query on the database a script makes; never raises.

    Args:
        script: SQL that makes the database.
        query: one statement; anything a model may say.
        seconds: limit of its time.
    """
    image, error = _image(script)
    if error:
        return Result(0, (), f"the database cannot be made: {error}")
    try:
        with _connection() as connection:
            connection.deserialize(image)
            for limit, most in _LIMITS.items():
                connection.setlimit(limit, most)
            connection.set_authorizer(_query_may)
            with _Limit(connection, seconds):
                cursor = connection.execute(query)
                rows = cursor.fetchmany(_MOST_ROWS + 1)
    except _FAILURES as bad:
        return Result(0, (), _words(bad))
    if cursor.description is None:
        return Result(0, (), "it is no query")
    if len(rows) > _MOST_ROWS:
        return Result(0, (), f"more than {_MOST_ROWS} rows")
    return Result(len(cursor.description), rows)


def broken(script: str) -> str:
    """What is wrong with the script of a database; empty where it makes one."""
    return _image(script)[1]


# --------------------------------------------------------------------------- inside

_FAILURES = (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError, OverflowError)


class _Limit:
    """Ends what a connection does after so many steps, and after so many seconds."""

    def __init__(self, connection: sqlite3.Connection, seconds: float) -> None:
        self._left = int(seconds * _STEPS_A_SECOND / _STEPS_A_CALL)
        connection.set_progress_handler(self._step, _STEPS_A_CALL)
        # For a machine that is slow. An interrupt is seen at the next step, as the handler is.
        self._timer = threading.Timer(seconds, connection.interrupt)
        self._timer.daemon = True

    def _step(self) -> int:
        self._left -= 1
        return self._left < 0

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()


@lru_cache(maxsize=8)
def _image(script: str) -> tuple[bytes, str]:
    """The database a script makes, as bytes, and what is wrong with the script."""
    try:
        with _connection() as connection:
            connection.set_authorizer(_script_may)
            with _Limit(connection, _SCRIPT_SECONDS):
                connection.executescript(script)
            connection.set_authorizer(None)
            if connection.in_transaction:
                connection.execute("COMMIT")
            if not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                return b"", "it makes no table"
            return connection.serialize(), ""
    except _FAILURES as bad:
        return b"", _words(bad)


@contextmanager
def _connection() -> Iterator[sqlite3.Connection]:
    """An empty database in memory, for which it is always `NOW`."""
    with (
        closing(sqlite3.connect(":memory:", isolation_level=None)) as connection,
        closing(sqlite3.connect(":memory:", isolation_level=None)) as clock,
    ):
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        # All in memory, so that the limit of memory is one of everything. SQLite has it for the
        # whole process only.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA hard_heap_limit = {_MOST_MEMORY}")
        for name in _CLOCK:
            connection.create_function(name, -1, _clock(clock, name), deterministic=True)
        for name in ("date", "time", "timestamp"):
            today = _clock(clock, "datetime" if name == "timestamp" else name)
            connection.create_function(f"current_{name}", 0, today, deterministic=True)
        for name, arguments in _GUARDED.items():
            guarded = _guard(clock, name)
            connection.create_function(name, arguments, guarded, deterministic=True)
        yield connection


def _query_may(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    forbidden = action not in _QUERY_MAY or _is_forbidden_function(action, second)
    return sqlite3.SQLITE_DENY if forbidden else sqlite3.SQLITE_OK


def _script_may(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    forbidden = action in _SCRIPT_MAY_NOT or _is_forbidden_function(action, second)
    if action == sqlite3.SQLITE_PRAGMA:
        forbidden = first is None or first.lower() not in _SCRIPT_PRAGMAS
    return sqlite3.SQLITE_DENY if forbidden else sqlite3.SQLITE_OK


def _is_forbidden_function(action: int, name: str | None) -> bool:
    return action == sqlite3.SQLITE_FUNCTION and (name or "").lower() in _NO_FUNCTION


def _clock(clock: sqlite3.Connection, name: str) -> Callable[..., Any]:
    """SQLite's date function of that name, for which it is always `NOW`, in UTC."""
    at = 1 if name == "strftime" else 0

    def call(*values: Any) -> Any:
        kept = list(values) if len(values) > at else [*values, "now"]
        fixed = [
            NOW if isinstance(value, str) and value.strip().lower() == "now" else value
            for value in kept
            if not (isinstance(value, str) and value.strip().lower() in ("localtime", "utc"))
        ]
        marks = ", ".join("?" * len(fixed))
        return clock.execute(f"SELECT {name}({marks})", fixed).fetchone()[0]

    return call


def _guard(clock: sqlite3.Connection, name: str) -> Callable[..., Any]:
    """SQLite's function of that name, but for arguments that make it run for long."""

    def call(*values: Any) -> Any:
        if name in ("printf", "format"):
            if values and _WIDE.search(str(values[0])):
                raise ValueError("too wide")
        elif len(str(values[1])) > _MOST_TRIMMED:
            raise ValueError("too many characters")
        marks = ", ".join("?" * len(values))
        return clock.execute(f"SELECT {name}({marks})", values).fetchone()[0]

    return call


def _words(bad: BaseException) -> str:
    if isinstance(bad, MemoryError):
        return "it needs more memory than it may have"
    if str(bad) == "interrupted":
        return "it takes too long"
    return str(bad) or type(bad).__name__
