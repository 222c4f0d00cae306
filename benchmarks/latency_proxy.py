"""A proxy that adds latency to each request of a server, in a process of its own.

    python benchmarks/latency_proxy.py HOST:PORT SECONDS

It prints its port. Whatever a client sends at once is a request here, which is right for GETs.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_CHUNK = 1 << 20  # bytes


@contextmanager
def delayed(endpoint: str, seconds: float) -> Iterator[str]:
    """Run a proxy in front of a server; its endpoint."""
    command = [sys.executable, __file__, urlsplit(endpoint).netloc, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = process.stdout.readline().strip() if process.stdout else ""
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


async def _serve(upstream: str, seconds: float) -> None:
    host, port = upstream.split(":")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(
            _forward(reader, server_writer, seconds), _forward(server_reader, writer, 0.0)
        )

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            await asyncio.sleep(seconds)
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2])))
