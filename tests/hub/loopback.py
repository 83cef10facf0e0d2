"""A hub as Hugging Face's on this machine, which answers its real client, and refuses or breaks off as a test wants."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LARGE = (".safetensors", ".bin", ".spm")  # kept apart, as by git-lfs: their digest is SHA-256, and they are redirected
NAME = "acme/tiny"


@dataclass
class Asked:
    path: str
    range: str | None
    token: str | None
    host: str


@dataclass
class Hub:
    """Files of one repository by commit, and what is wrong with the hub."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit: path: content
    revisions: dict[str, str] = field(default_factory=dict)
    token: str | None = None  # asked for, if any
    refusal: tuple[int, dict[str, str]] | None = None  # status and headers, for every request
    refusals: int = 0  # if any, only so many requests are refused
    cut: int | None = None  # bytes after which the next weights break off, once
    stall: threading.Event | None = None  # at `cut`, wait for it instead
    lies: dict[str, bytes] = field(default_factory=dict)  # content other than listed
    ranges: bool = True
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def commit(self, files: dict[str, bytes], revision: str = "main") -> str:
        content = b"".join(
            hashlib.sha256(part).digest() for name in sorted(files) for part in (name.encode(), files[name])
        )
        name = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        self.files[name], self.revisions[revision] = files, name
        return name

    def contents(self) -> list[str]:
        """The files whose content was asked for, in order."""
        return [asked.path.rpartition("/")[2] for asked in self.asked if "/resolve/" in asked.path]


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        host = self.headers["Host"].partition(":")[0]
        hub.asked.append(Asked(path, self.headers["Range"], self.headers["Authorization"], host))
        if hub.refusal is not None:
            status, headers = hub.refusal
            hub.refusals -= 1
            if hub.refusals == 0:
                hub.refusal = None
            self._send(status, b"{}", headers)
        elif path.startswith("/content/"):
            self._content(path.removeprefix("/content/"))
        elif hub.token is not None and self.headers["Authorization"] != f"Bearer {hub.token}":
            self._send(401, b"{}", {"X-Error-Message": "Invalid username or password."})
        elif path.startswith(f"/api/models/{NAME}/revision/"):
            self._list(path.rpartition("/")[2])
        elif path.startswith(f"/{NAME}/resolve/"):
            self._resolve(*path.removeprefix(f"/{NAME}/resolve/").split("/", 1))
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _list(self, revision: str) -> None:
        commit = revision if revision in self.hub.files else self.hub.revisions.get(revision)
        if commit is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        listed = [_sibling(name, content) for name, content in self.hub.files[commit].items()]
        self._send(200, json.dumps({"id": NAME, "modelId": NAME, "sha": commit, "siblings": listed}).encode())

    def _resolve(self, commit: str, name: str) -> None:
        if name not in self.hub.files.get(commit, {}):
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        elif name.endswith(LARGE):  # at another host, as the hub's own storage is
            self._send(302, b"", {"Location": f"http://localhost:{self.hub.port}/content/{commit}/{name}"})
        else:
            self._content(f"{commit}/{name}")

    def _content(self, path: str) -> None:
        commit, _, name = path.partition("/")
        content = self.hub.lies.get(name, self.hub.files[commit][name])
        begin = 0
        if self.hub.ranges and (asked := self.headers["Range"]):
            begin = int(asked.removeprefix("bytes=").partition("-")[0])
        status = 206 if begin else 200
        headers = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"} if begin else {}
        if self.hub.cut is None or not name.endswith(".safetensors"):
            self._send(status, content[begin:], headers)
            return
        cut, self.hub.cut = self.hub.cut, None
        self._send(status, content[begin : begin + cut], headers, length=len(content) - begin)
        self.wfile.flush()
        if self.hub.stall is not None:
            self.hub.stall.wait(60)
        self.close_connection = True

    def _send(
        self, status: int, content: bytes, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    found: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
    if name.endswith(LARGE):
        digest = hashlib.sha256(content).hexdigest()
        found["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
    return found
