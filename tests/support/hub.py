"""A server on this machine that speaks as much of the Hugging Face Hub's API as its client needs to push and load."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_of_this_test"
BINARY = (".pt", ".npz", ".png")  # stored as large files, as the Hub does


@dataclass
class Repository:
    """A repository: the files of each commit; the newest is the last one."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, changes: dict[str, bytes]) -> str:
        files = {**self.files(), **changes}
        oid = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[oid] = files
        return oid

    @property
    def newest(self) -> str:
        return list(self.commits)[-1]

    def files(self, revision: str = "main") -> dict[str, bytes]:
        if not self.commits:
            return {}
        return self.commits[self.newest if revision == "main" else revision]


class Hub(ThreadingHTTPServer):
    """The server. `repositories` are those that it has, by "models/USER/NAME" or "datasets/USER/NAME"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.large_files: dict[str, bytes] = {}
        self.asked: list[str] = []  # method and path of each request
        self.lies: dict[str, int] = {}  # sizes that it lists for files, whatever they are

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Refused(Exception):
    """A request that is answered by an error: its status, and the code that the client looks at."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(code)
        self.status, self.code = status, code


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""

    def handle_request(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self._body()
        self.server.asked.append(f"{self.command} {path}")
        try:
            self._answer(path, body)
        except Refused as error:
            self._send(error.status, b"{}", {"X-Error-Code": error.code} if error.code else {})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def _answer(self, path: str, body: bytes) -> None:
        repository = r"(?P<name>[^/]+/[^/]+)"
        api, web = rf"/api/(?P<kind>models|datasets)/{repository}", rf"/(?P<kind>datasets)?/?{repository}"
        routes: dict[str, Callable[..., None]] = {
            r"POST /api/repos/create": self._create,
            r"POST /api/validate-yaml": self._validate,
            rf"GET {api}(/revision/(?P<revision>.+))?": self._info,
            rf"POST {api}/preupload/main": self._preupload,
            rf"POST {web}\.git/info/lfs/objects/batch": self._batch,
            r"PUT /large/(?P<oid>[0-9a-f]{64})": self._upload,
            rf"POST {api}/commit/main": self._commit,
            rf"(?:GET|HEAD) {web}/resolve/(?P<revision>\w+)/(?P<file>.+)": self._file,
        }
        for route, answer in routes.items():
            if found := re.fullmatch(route, f"{self.command} {path}"):
                answer(body, **found.groupdict())
                return
        raise Refused(501)  # a route that nobody has needed yet

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    @property
    def _is_owner(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repository(self, kind: str | None, name: str, *, writes: bool = False) -> Repository:
        repository = self.server.repositories.get(f"{kind or 'models'}/{name}")
        if repository is None or (repository.private and not self._is_owner):
            raise Refused(404 if self._is_owner else 401, "RepoNotFound")
        if writes and not self._is_owner:
            raise Refused(403)
        return repository

    def _create(self, body: bytes) -> None:
        asked = json.loads(body)
        if not self._is_owner:
            raise Refused(401)
        name = f"{asked.get('type', 'model')}s/{asked['organization']}/{asked['name']}"
        url = f"{self.server.url}/{name.removeprefix('models/')}"
        if name in self.server.repositories:
            self._send(409, json.dumps({"error": "You already created this repo", "url": url}).encode())
            return
        repository = self.server.repositories[name] = Repository(asked.get("visibility") == "private")
        repository.commit({".gitattributes": b"*.pt filter=lfs\n"})
        self._json({"url": url})

    def _validate(self, body: bytes) -> None:
        header = json.loads(body)["content"].split("---\n")[1]
        errors = [] if isinstance(yaml.safe_load(header), dict) else [{"message": "no mapping"}]
        self._json({"errors": errors, "warnings": []})

    def _info(self, body: bytes, kind: str, name: str, revision: str | None) -> None:
        repository = self._repository(kind, name)
        if revision not in (None, "main", *repository.commits):
            raise Refused(404, "RevisionNotFound")
        oid = repository.newest if revision in (None, "main") else revision
        sizes = {file: self.server.lies.get(file, len(data)) for file, data in repository.files(oid or "main").items()}
        siblings = [{"rfilename": file, "size": size, "blobId": "0" * 40} for file, size in sizes.items()]
        self._json({"id": name, "sha": oid, "private": repository.private, "siblings": siblings, "tags": []})

    def _preupload(self, body: bytes, kind: str, name: str) -> None:
        self._repository(kind, name, writes=True)
        files = [one["path"] for one in json.loads(body)["files"]]
        modes = {path: "lfs" if path.endswith(BINARY) else "regular" for path in files}
        told = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
        self._json({"files": told})

    def _batch(self, body: bytes, kind: str | None, name: str) -> None:
        self._repository(kind, name, writes=True)
        objects = json.loads(body)["objects"]
        for one in objects:
            one["actions"] = {"upload": {"href": f"{self.server.url}/large/{one['oid']}"}}
        self._json({"transfer": "basic", "objects": objects})

    def _upload(self, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(400)
        self.server.large_files[oid] = body
        self._send(200, b"")

    def _commit(self, body: bytes, kind: str, name: str) -> None:
        repository, files = self._repository(kind, name, writes=True), {}
        for item in map(json.loads, body.splitlines()):
            value = item["value"]
            if item["key"] == "header" and value.get("parentCommit", repository.newest) != repository.newest:
                raise Refused(412)
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self.server.large_files[value["oid"]]
        oid = repository.commit(files)
        self._json({"commitUrl": f"{self.server.url}/{name}/commit/{oid}", "commitOid": oid})

    def _file(self, body: bytes, kind: str | None, name: str, revision: str, file: str) -> None:
        files = self._repository(kind, name).files(revision)
        if file not in files:
            raise Refused(404, "EntryNotFound")
        etag = hashlib.sha256(files[file]).hexdigest()
        self._send(200, files[file], {"ETag": f'"{etag}"', "X-Repo-Commit": revision})


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Yields a server that runs until the end of the block."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
