"""Object stores that run on this machine while tests do: SeaweedFS and moto, both by S3."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from object_server import SECRET, ObjectServer, program, reserved_ports, seaweed, served

__all__ = ["SECRET", "ObjectServer", "moto", "reserved_ports", "seaweed"]


@contextmanager
def moto(folder: Path) -> Iterator[ObjectServer]:
    """Run moto's server, which keeps files in its memory."""
    with reserved_ports(1) as (port,):
        command = [program("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
        server = ObjectServer(f"http://127.0.0.1:{port}")
        with served(command, server, folder / "log"):
            yield server
