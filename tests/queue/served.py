"""A folder on a local server: the package indexes and pages of the tests, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

JSON = "application/vnd.pypi.simple.v1+json"


class Files(SimpleHTTPRequestHandler):
    """A folder's files; an index in JSON if the folder has one and the client asks for it."""

    server: Site

    def send_head(self):
        self.server.asked.append(self.path)
        wanted = Path(self.translate_path(self.path)) / "index.json"
        if JSON in self.headers.get("Accept", "") and wanted.is_file():
            self.send_response(200)
            self.send_header("Content-Type", JSON)
            self.send_header("Content-Length", str(wanted.stat().st_size))
            self.end_headers()
            return wanted.open("rb")
        return super().send_head()

    def log_message(self, *words: object) -> None:
        pass


class Site(ThreadingHTTPServer):
    """A server of a folder. asked: the paths that were asked for."""

    def __init__(self, folder: Path):
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), lambda *words: Files(*words, directory=str(folder)))

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Site]:
        """A server that answers until the end of the block."""
        site = cls(folder)
        Thread(target=site.serve_forever, daemon=True).start()
        yield site
        site.shutdown()
        site.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"
