"""SeaweedFS: a server on this machine that speaks S3, for benchmarks and tests.

Files are uploaded by the standard library. A process that has used obstore must not fork, and
players are forks.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

SECRET = "very-secret"  # noqa: S105  no message may show it
REGION = "us-east-1"
_CONNECTIONS = 8  # of an upload
_PATIENCE = 60.0  # seconds for a server to come up
_PAUSE = 0.05
_CONFLICT = 409  # the bucket exists
_SIGNED = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/x"  # nobody checks it


@dataclass(frozen=True)
class ObjectServer:
    """A server that speaks S3. It accepts any key."""

    endpoint: str
    files: str = ""  # the same files by plain HTTP, below their bucket

    @property
    def options(self) -> dict[str, Any]:
        """The `storage_options` that reach it."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": "anybody",
            "secret_access_key": SECRET,
            "region": REGION,
        }

    def through(self, endpoint: str) -> ObjectServer:
        """The same server, reached by a proxy in front of it."""
        return replace(self, endpoint=endpoint)

    def upload(self, bucket: str, files: Mapping[str, bytes | Path]) -> None:
        """Make a bucket if there is none, and put files into it."""
        try:
            self._put(bucket, b"")
        except urllib.error.HTTPError as error:
            with error:
                if error.code != _CONFLICT:
                    raise
        with ThreadPoolExecutor(_CONNECTIONS) as threads:
            list(threads.map(lambda name: self._put(f"{bucket}/{name}", files[name]), files))

    def remove(self, path: str) -> None:
        """Remove a file, named with its bucket."""
        self._send("DELETE", path, None)

    def _put(self, path: str, data: bytes | Path) -> None:
        self._send("PUT", path, data.read_bytes() if isinstance(data, Path) else data)

    def _send(self, method: str, path: str, body: bytes | None) -> None:
        request = urllib.request.Request(  # noqa: S310  HTTP
            f"{self.endpoint}/{quote(path)}",
            body,
            {"Authorization": _SIGNED, "Content-Type": "application/octet-stream"},
            method=method,
        )
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310


@contextmanager
def seaweed(folder: Path) -> Iterator[ObjectServer]:
    """Run SeaweedFS with its data in a folder. It is ready in about three seconds."""
    # Its ports for gRPC would be these plus 10,000, which may be too large.
    names = ("master", "volume", "filer", "s3")
    all_names = [*names, *(f"{name}.grpc" for name in names)]
    with reserved_ports(len(all_names)) as numbers:
        ports = dict(zip(all_names, numbers, strict=True))
        command = [program("weed"), "server", "-s3", f"-dir={folder}", "-ip=127.0.0.1"]
        command += ["-ip.bind=127.0.0.1", "-volume.max=200", "-master.volumeSizeLimitMB=256"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        for name in names:
            command += [f"-{name}.port={ports[name]}", f"-{name}.port.grpc={ports[f'{name}.grpc']}"]
        server = ObjectServer(
            f"http://127.0.0.1:{ports['s3']}", f"http://127.0.0.1:{ports['filer']}/buckets"
        )
        with served(command, server, folder / "log"):
            yield server


@contextmanager
def served(command: list[str], server: ObjectServer, log: Path) -> Iterator[None]:
    """Run the command of a server, from when it accepts files until the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_for(server, process, log)
            yield
        finally:
            process.kill()
            process.wait()


def _wait_for(server: ObjectServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            server.upload("ready-bucket", {"ready": b"yes"})
        except OSError as error:  # of urllib too
            if process.poll() is not None or time.monotonic() > deadline:
                words = log.read_text(errors="replace")[-500:]
                msg = f"{process.args!r} does not accept files: {error}. Its last words: {words}"
                raise RuntimeError(msg) from error
            time.sleep(_PAUSE)
        else:
            return


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Reserve ports of the loopback: only who asks for one of them by its number can have it.

    They are bound, so that the system gives them to nobody else, but nobody listens on them. A
    server that sets SO_REUSEADDR, as all do, can bind such a port once more and listen.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [each.getsockname()[1] for each in sockets]


def program(name: str) -> str:
    """Find a program of a package: beside Python, beside the package, or in the PATH."""
    folders = [Path(sys.executable).parent, *(Path(entry) / "bin" for entry in sys.path)]
    for folder in folders:
        if found := shutil.which(name, path=str(folder)):
            return found
    if found := shutil.which(name):
        return found
    msg = f"{name} is not installed."
    raise FileNotFoundError(msg)
