"""Object stores that run on this machine while tests do: SeaweedFS and moto, both by S3."""

import asyncio
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store
from watching import until

SECRET = "very-secret"  # noqa: S105  no message may show it


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
            "region": "us-east-1",
        }

    def through(self, endpoint: str) -> "ObjectServer":
        """The same server, reached by a proxy in front of it."""
        return replace(self, endpoint=endpoint)

    def upload(self, bucket: str, files: Mapping[str, bytes]) -> None:
        """Make a bucket if there is none, and put files into it."""
        request = urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")  # noqa: S310
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/x")
        try:
            urllib.request.urlopen(request, timeout=30).close()  # noqa: S310
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 409:  # it exists
                    raise
        store = S3Store(bucket, **self.options, client_options={"allow_http": True})

        async def put_all() -> None:
            turns = asyncio.Semaphore(16)

            async def put(path: str, data: bytes) -> None:
                async with turns:
                    await obstore.put_async(store, path, data)

            await asyncio.gather(*(put(path, data) for path, data in files.items()))

        asyncio.run(put_all())


@contextmanager
def seaweed(folder: Path) -> Iterator[ObjectServer]:
    """Run SeaweedFS with its data in a folder. It is ready in about three seconds."""
    # Its ports for gRPC would be these plus 10,000, which may be too large.
    names = ("master", "volume", "filer", "s3")
    ports = dict(zip([*names, *(f"{name}.grpc" for name in names)], free_ports(8), strict=True))
    command = [_program("weed"), "server", "-s3", f"-dir={folder}", "-ip=127.0.0.1"]
    command += ["-ip.bind=127.0.0.1", "-volume.max=200", "-master.volumeSizeLimitMB=256"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    for name in names:
        command += [f"-{name}.port={ports[name]}", f"-{name}.port.grpc={ports[f'{name}.grpc']}"]
    server = ObjectServer(
        f"http://127.0.0.1:{ports['s3']}", f"http://127.0.0.1:{ports['filer']}/buckets"
    )
    with _running(command, folder / "log"):
        until(lambda: _accepts_files(server), seconds=60)
        yield server


@contextmanager
def moto(folder: Path) -> Iterator[ObjectServer]:
    """Run moto's server, which keeps files in its memory."""
    (port,) = free_ports(1)
    command = [_program("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    server = ObjectServer(f"http://127.0.0.1:{port}")
    with _running(command, folder / "log"):
        until(lambda: _accepts_files(server), seconds=60)
        yield server


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _accepts_files(server: ObjectServer) -> bool:
    try:
        server.upload("ready-bucket", {"ready": b"yes"})
    except (OSError, obstore.exceptions.BaseError):
        return False
    return True


def _program(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found, f"{name} is not installed"
    return found


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.kill()
            process.wait()
