"""A model hub on this machine: the part of its interface that fetching a snapshot needs, and nothing outside it."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What the hub holds. branches: name → commit; files: commit → path → content; asked: "METHOD path" as they came.

    gated: the model is there and needs an agreement.
    """

    repository: str = "owner/some-model"
    branches: dict[str, str] = field(default_factory=dict)
    files: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    gated: bool = False
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def push(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """A new commit of these files on a branch."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()
        self.files[commit] = files
        self.branches[branch] = commit
        return commit


@contextmanager
def hub() -> Iterator[Hub]:
    """A running hub without a model; what it holds may change while it runs."""
    held = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing on the tests' output."""

        def answer(self, status: int, content: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def refuse(self, status: int, code: str) -> None:
            self.answer(status, b"{}", {"X-Error-Code": code})

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            held.asked.append(f"{self.command} {path}")
            words = path.removeprefix("/api/models").removeprefix(f"/{held.repository}")
            if words == path or not path.removeprefix("/api/models").startswith(f"/{held.repository}"):
                return self.refuse(401, "RepoNotFound")
            if held.gated:
                return self.refuse(403, "GatedRepo")
            kind, revision, rest = [*words.strip("/").split("/", 2), "", "", ""][:3]
            commit = held.branches.get(revision or "main", revision)
            if commit not in held.files:
                return self.refuse(404, "RevisionNotFound")
            files = held.files[commit]
            if kind == "resolve":
                if rest not in files:
                    return self.refuse(404, "EntryNotFound")
                tag = hashlib.sha256(files[rest]).hexdigest()
                return self.answer(200, files[rest], {"ETag": f'"{tag}"', "X-Repo-Commit": commit})
            tree = [{"type": "file", "path": name, "size": len(files[name]), "oid": commit} for name in files]
            about = {
                "id": held.repository,
                "sha": commit,
                "siblings": [{"rfilename": name} for name in files],
            }
            content = json.dumps(tree if kind == "tree" else about).encode()
            return self.answer(200, content, {"Content-Type": "application/json"})

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    held.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield held
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
