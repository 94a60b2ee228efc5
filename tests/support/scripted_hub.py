"""A Hugging Face hub that speaks what huggingface_hub calls for an upload: repositories, files, commits, tags.

It is as strict as the hub in what matters here: a commit needs every large file that it names, whole, with the digest
that is its name; a caller needs the token; a name can be tagged once.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_scripted_token"


@dataclass
class Repository:
    is_private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})
    """The files of each commit, in order."""
    messages: list[str] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return list(self.commits)[-1]


class ScriptedHub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.storage: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.cuts_storage_after: int | None = None
        """Bytes of a large file after which its connection breaks; then the storage refuses all."""
        self.fails_at: str = ""
        """A part of a path that is answered with an error."""
        self.fails_with = 400

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def scripted_hub() -> Iterator[ScriptedHub]:
    with ScriptedHub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ScriptedHub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(
            (r"/api/models/([^/]+/[^/]+)", self._info),
            (r"/api/models/([^/]+/[^/]+)/revision/main", self._info),
            (r"/api/models/([^/]+/[^/]+)/refs", self._refs),
            (r"/api/models/([^/]+/[^/]+)/tree/main", self._tree),
        )

    def do_POST(self) -> None:
        self._answer(
            (r"/api/repos/create", self._create),
            (r"/api/validate-yaml", lambda body: {"errors": [], "warnings": []}),
            (r"/api/models/([^/]+/[^/]+)/preupload/main", self._upload_modes),
            (r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", self._places),
            (r"/api/models/([^/]+/[^/]+)/commit/main", self._commit),
            (r"/api/models/([^/]+/[^/]+)/tag/(.+)", self._tag),
        )

    def do_PUT(self) -> None:
        size = int(self.headers["Content-Length"])
        if self.server.cuts_storage_after is not None:
            if self.server.cuts_storage_after == 0:
                self.rfile.read(size)
                self._send(410, {"error": "the storage is gone"})
                return
            self.rfile.read(min(size, self.server.cuts_storage_after))
            self.server.cuts_storage_after = 0
            self.close_connection = True
            self.connection.close()
            return
        content = self.rfile.read(size)
        self.server.storage[self.path.rpartition("/")[2]] = content
        self._send(200, {})

    def _answer(self, *routes: tuple[str, Any]) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.server.calls.append(f"{self.command} {path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(403, {"error": "this token may not write here"})
        elif self.server.fails_at and self.server.fails_at in path:
            self._send(self.server.fails_with, {"error": "scripted to fail"})
        else:
            for pattern, handler in routes:
                if found := re.fullmatch(pattern, path):
                    answer = handler(*found.groups(), body)
                    if answer is None:
                        self._send(404, {"error": "no such repository"})
                    else:
                        self._send(200, answer)
                    return
            self._send(501, {"error": f"{self.command} {path} is not scripted"})

    def _send(self, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _info(self, name: str, body: bytes) -> Any:
        repository = self.server.repositories.get(name)
        if repository is None:
            return None
        return {"_id": "1", "id": name, "modelId": name, "private": repository.is_private, "sha": repository.head}

    def _create(self, body: bytes) -> Any:
        values = json.loads(body)
        name = f"{values['organization']}/{values['name']}"
        self.server.repositories[name] = Repository(is_private=values["visibility"] == "private")
        return {"url": f"{self.server.url}/{name}", "name": name}

    def _refs(self, name: str, body: bytes) -> Any:
        tags = self.server.repositories[name].tags
        listed = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": commit} for tag, commit in tags.items()]
        return {"branches": [], "converts": [], "tags": listed}

    def _tree(self, name: str, body: bytes) -> Any:
        repository = self.server.repositories[name]
        files = repository.commits[repository.head]
        return [{"type": "file", "oid": "0", "size": len(data), "path": path} for path, data in files.items()]

    def _upload_modes(self, name: str, body: bytes) -> Any:
        modes = {}
        for file in json.loads(body)["files"]:
            modes[file["path"]] = "lfs" if file["path"].endswith(".safetensors") else "regular"
        return {"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]}

    def _places(self, name: str, body: bytes) -> Any:
        objects = []
        for wanted in json.loads(body)["objects"]:
            place = {"upload": {"href": f"{self.server.url}/storage/{wanted['oid']}"}}
            objects.append(wanted if wanted["oid"] in self.server.storage else {**wanted, "actions": place})
        return {"transfer": "basic", "objects": objects}

    def _commit(self, name: str, body: bytes) -> Any:
        repository = self.server.repositories[name]
        files = dict(repository.commits[repository.head])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                repository.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                data = self.server.storage[value["oid"]]
                assert hashlib.sha256(data).hexdigest() == value["oid"] and len(data) == value["size"]
                files[value["path"]] = data
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = hashlib.sha1(body + repository.head.encode()).hexdigest()
        repository.commits[commit] = files
        return {"success": True, "commitUrl": f"{self.server.url}/{name}/commit/{commit}", "commitOid": commit}

    def _tag(self, name: str, revision: str, body: bytes) -> Any:
        self.server.repositories[name].tags[json.loads(body)["tag"]] = revision
        return {"success": True}
