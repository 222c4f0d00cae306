"""Servers of files that run on this machine while tests do: FTP, and a small Hugging Face Hub."""

import hashlib
import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from object_servers import reserved_ports
from watching import until

USER = "somebody"
PASSWORD = "s3cret-word"  # noqa: S105  no message may show it
TOKEN = "hf_s3cretToken"  # noqa: S105  likewise


# It refuses a wrong password at once, not after three seconds.
_FTP = """
from pyftpdlib.__main__ import main
from pyftpdlib.handlers import FTPHandler

FTPHandler.auth_failed_timeout = 0
main()
"""


@contextmanager
def ftp_server(folder: Path) -> Iterator[str]:
    """Serve a folder by FTP to one user. Its address."""
    with reserved_ports(1) as (port,):
        command = [sys.executable, "-W", "ignore", "-c", _FTP, "-i", "127.0.0.1"]
        command += ["-p", str(port), "-d", str(folder), "-u", USER, "-P", PASSWORD]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: process.poll() is not None or _answers(port), seconds=60)
            assert process.poll() is None, "the server has ended"
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


class Hub(ThreadingHTTPServer):
    """A Hub with one dataset, somebody/corpus. `sent` counts the bytes of files, `lists` lists."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.folder = folder
        self.sent: Counter[str] = Counter()
        self.lists = 0


@contextmanager
def hub_server(folder: Path) -> Iterator[Hub]:
    """Serve a folder as the dataset of a Hub."""
    with Hub(folder) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Requests(BaseHTTPRequestHandler):
    """What `HfFileSystem` asks of the Hub."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        about, _, name = path.partition("/main")
        file = self.server.folder / name.strip("/")
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/datasets/somebody/corpus":
            self._answer({"id": "somebody/corpus", "sha": "a" * 40, "siblings": [], "tags": []})
        elif about == "/api/datasets/somebody/corpus/tree" and file.is_dir():
            self.server.lists += 1
            self._answer([self._entry(each) for each in sorted(file.iterdir())])
        elif about == "/datasets/somebody/corpus/resolve" and file.is_file():
            self._send(file)
        else:
            self._answer({"error": "Not found"}, 404)

    def _entry(self, file: Path):
        path = str(file.relative_to(self.server.folder))
        if file.is_dir():
            return {"type": "directory", "path": path, "oid": "d" * 40}
        size, digest = file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()
        lfs = {"oid": digest, "size": size, "pointerSize": 130}
        return {"type": "file", "path": path, "oid": digest[:40], "size": size, "lfs": lfs}

    def _send(self, file: Path) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        data = file.read_bytes()
        part = data[first : last + 1]
        self.server.sent[file.name] += len(part)
        where = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        self._answer(part, 206, {"Content-Range": where})

    def _answer(self, content, status=200, headers=None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
