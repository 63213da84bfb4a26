"""A stand-in for the Hugging Face hub: the few routes that `huggingface_hub` asks for a download."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class Hub:
    """Repositories (name -> revision -> folder) served over HTTP, and the paths that were asked for."""

    def __init__(self, folders, *, refusals=None):
        self.folders = folders
        self.refusals = refusals or {}
        """Repository -> (status, error code) of every answer about it."""
        self.asked = []
        self.commits = {"main": COMMIT, "v2": OTHER_COMMIT}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def downloads(self):
        """Files whose contents were asked for."""
        return {
            path.split("/", 5)[5] for method, path in self.asked if method == "GET" and "/resolve/" in path
        }

    def stop(self):
        """Close the port; may be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)

    def answer(self, path):
        """Status, headers and body of one request."""
        is_api = path.startswith("/api/models/")
        owner, repository, *rest = path.removeprefix("/api/models").strip("/").split("/")
        name = f"{owner}/{repository}"
        if name in self.refusals:
            status, code = self.refusals[name]
            return status, {"X-Error-Code": code, "X-Error-Message": "no"}, b"{}"
        if name not in self.folders:
            return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no"}, b"{}"
        verb, revision, *inside = rest
        commit = self.commits.get(revision, revision)
        folder = self.folders[name].get(commit)
        if folder is None:
            return 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no"}, b"{}"
        if is_api and verb == "revision":
            return 200, {}, _json({"id": name, "sha": commit, "private": False, "tags": []})
        if is_api and verb == "tree":
            return 200, {}, _json(_tree(folder))
        file = folder.joinpath(*inside)
        if verb != "resolve" or not file.is_file():
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        content = file.read_bytes()
        return 200, {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": commit}, content

    def _handler(hub):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path = unquote(urlsplit(self.path).path)
                hub.asked.append((self.command, path))
                status, headers, body = hub.answer(path)
                self.send_response(HTTPStatus(status))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        return Handler


@contextmanager
def serving(folders, **options):
    """A running hub, stopped at the end."""
    hub = Hub(folders, **options)
    try:
        yield hub
    finally:
        hub.stop()


def _tree(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        {
            "type": "file",
            "path": path.relative_to(folder).as_posix(),
            "size": path.stat().st_size,
            "oid": _oid(path.read_bytes()),
        }
        for path in files
    ]


def _oid(content):
    return hashlib.sha1(content).hexdigest()


def _json(value):
    return json.dumps(value).encode()
