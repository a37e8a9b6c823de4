"""A stand-in for the Hugging Face hub: the part of its HTTP interface that fetching a model needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """Serves repositories from memory on a free port. Files above 1 kB are kept by SHA-256, as the hub does."""

    daemon_threads = True

    def __init__(self, repos: Mapping[str, Mapping[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos = repos
        self.token = ""
        """Asked for when set."""
        self.gated: set[str] = set()
        self.cut_after: dict[str, int] = {}
        """File -> bytes after which the next transfer of it breaks off, once."""
        self.damaged: set[str] = set()
        self.status: dict[str, int] = {}
        """"API" or a file -> what requests for it are answered with."""
        self.held: dict[str, threading.Event] = {}
        """File -> set once its first half has been sent; the rest never comes."""
        self.requests: list[str] = []
        """Paths that were asked for."""
        self.ranges: list[str] = []
        """`Range` headers of transfers."""
        self.fetched: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path
        self.server.requests.append(path)
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._fault(401, "RepoNotFound")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            if "API" in self.server.status:
                return self._fault(self.server.status["API"], "")
            return self._describe(match[1], match[2] or "revision", match[3] or "main")
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._transfer(match[1], match[2], match[3], with_body=with_body)
        self._fault(404, "EntryNotFound")

    def _fault(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _missing(self, repo: str, revision: str) -> bool:
        if repo not in self.server.repos:
            self._fault(404, "RepoNotFound")
        elif repo in self.server.gated:
            self._fault(403, "GatedRepo")
        elif revision not in ("main", COMMIT):
            self._fault(404, "RevisionNotFound")
        else:
            return False
        return True

    def _describe(self, repo: str, what: str, revision: str) -> None:
        if self._missing(repo, revision):
            return
        files = self.server.repos[repo]
        if what == "tree":
            content: object = [_tree_entry(name, raw) for name, raw in files.items()]
        else:
            content = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        raw = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _transfer(self, repo: str, revision: str, name: str, *, with_body: bool) -> None:
        if self._missing(repo, revision):
            return
        raw = self.server.repos[repo].get(name)
        if raw is None:
            return self._fault(404, "EntryNotFound")
        if name in self.server.status:
            return self._fault(self.server.status[name], "")
        start = 0
        if with_body:
            self.server.fetched.append(name)
            if asked := self.headers.get("Range"):
                self.server.ranges.append(asked)
                start = int(asked.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{_etag(raw)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(raw) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(raw) - 1}/{len(raw)}")
        self.end_headers()
        if not with_body:
            return
        body = bytes(len(raw)) if name in self.server.damaged else raw
        if name in self.server.held:
            self.wfile.write(body[: len(body) // 2])
            self.server.held[name].set()
            self.rfile.read()  # until the client goes away
            return
        end = self.server.cut_after.pop(name, len(raw))
        self.wfile.write(body[start:end])
        if end < len(raw):
            self.close_connection = True


def _etag(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest() if len(raw) > 1000 else hashlib.sha1(raw).hexdigest()


def _tree_entry(name: str, raw: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(raw), "oid": hashlib.sha1(raw).hexdigest()}
    if len(raw) > 1000:
        entry["lfs"] = {"oid": hashlib.sha256(raw).hexdigest(), "size": len(raw), "pointerSize": 130}
    return entry
