"""Tokenize texts with llama.cpp itself. Runs in the `llamacpp` environment (xllamacpp).

Request: ``gguf`` (file), ``texts`` (list), ``parse_special`` (bool). Result: ``ids`` (a list of
token ids for each text), ``texts`` (what llama.cpp makes of each list again), and the version.

llama.cpp's own C++ server is started inside this process, on loopback, and asked over HTTP.
"""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from _job import Job, main, versions


class Server:
    """llama.cpp's server of one GGUF, and one connection to it."""

    def __init__(self, gguf: str) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = gguf
        params.n_ctx = 512
        params.warmup = False
        params.port = 0
        self._server = xllamacpp.Server(params)
        address = urlsplit(self._server.listening_address)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request; the decoded answer."""
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", path, json.dumps(body), headers)
        response = self._connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}: {data[:500]!r}")
        value: dict[str, Any] = json.loads(data)
        return value


def work(job: Job) -> dict[str, Any]:
    """Ask for each text's tokens, and for the text of these tokens."""
    texts = job.request["texts"]
    server = Server(job.request["gguf"])
    ids: list[list[int]] = []
    back: list[str] = []
    for done, text in enumerate(texts):
        job.progress(done, len(texts), "tokenizing")
        body = {
            "content": text,
            "add_special": False,
            "parse_special": job.request["parse_special"],
        }
        ids.append(server.post("/tokenize", body)["tokens"])
        back.append(server.post("/detokenize", {"tokens": ids[-1]})["content"])
    return {"ids": ids, "texts": back, "packages": versions("xllamacpp")}


if __name__ == "__main__":
    main(work)
