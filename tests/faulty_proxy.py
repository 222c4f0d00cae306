"""A proxy in front of an HTTP server that makes the faults of networks and storages on request."""

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_NOW = struct.pack("ii", 1, 0)  # SO_LINGER: close by a reset


class Request(NamedTuple):
    method: str
    path: str  # without its query, decoded
    head: bytes
    body: bytes


@dataclass
class Fault:
    """A fault, and the requests that it befalls.

    `name` is one of: "status" (an answer without the server), "reset", "stall" (no answer),
    "stall in body", "cut" (half of the body, then the end), "flip" (one bit of the body), "invert"
    (all of them),
    "slow" (the body in ten pieces, with a pause after each), "hold" (no answer before the fault is
    removed from the proxy's) and "hold, then reset", "whole" (the server gets no Range),
    "header" (the server's answer with `headers`; those that are empty are left out).
    """

    name: str
    times: int = 1 << 30  # requests that it befalls
    path: str = ""  # in their path
    method: str = "GET"
    unless: str = ""  # in their head
    probability: float = 1.0
    after: int = 0  # requests that are spared first
    after_paths: int = 0  # likewise, paths: a client may ask twice for a file that is late
    status: str = "503 Service Unavailable"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    pause: float = 0.0  # seconds
    spared: set[str] = field(default_factory=set, compare=False)  # paths so far

    def befalls(self, request: Request, chance: random.Random) -> bool:
        fits = self.method == request.method and self.path in request.path
        if not fits or self.times <= 0 or (self.unless and self.unless.encode() in request.head):
            return False
        if request.path in self.spared or len(self.spared) < self.after_paths:
            self.spared.add(request.path)
            return False
        self.after -= 1
        if self.after >= 0 or chance.random() >= self.probability:
            return False
        self.times -= 1
        return True


class FaultyProxy:
    """A proxy with a thread of its own, which serves from `with` to its end.

    `requests` and `sent` count the requests and the bytes of bodies by path, `most` the requests
    that were under way at a time, and `running` those that are.
    """

    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls  # of the proxy, if its clients use https
        address = urlsplit(upstream)
        self._upstream = (address.hostname, address.port)
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task] = set()
        self._chance = random.Random(0)
        self.running = 0
        self.faults: list[Fault] = []
        self.latency = 0.0  # seconds, for each request
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.times: list[float] = []  # of all requests
        self.most = 0

    def __enter__(self) -> "FaultyProxy":  # noqa: PYI034  Self comes with Python 3.11
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        # Bound for as long as this runs: nobody else gets the port while the proxy is away.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._port = self._reserved.getsockname()[1]
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserved.close()

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    def fault(self, name: str, **details) -> Fault:
        """Make a fault from now on."""
        self.faults.append(Fault(name, **details))
        return self.faults[-1]

    def heal(self) -> None:
        """Make no more faults, and forget the counts."""
        self.faults.clear()
        self.requests.clear()
        self.sent.clear()
        self.times.clear()
        self.latency = self.most = 0

    def release(self) -> None:
        """Hold no request any more."""
        self.faults[:] = [fault for fault in self.faults if not fault.name.startswith("hold")]

    def go_away(self) -> None:
        """Refuse connections, and reset those that are open, until `come_back`."""
        self._do(self._stop())

    def come_back(self) -> None:
        self._do(self._listen())

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve,
            "127.0.0.1",
            self._port,
            reuse_address=True,
            limit=1 << 20,
            ssl=self._tls,
        )

    async def _stop(self) -> None:
        self._server.close()
        for writer in self._open:
            _reset(writer)
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self._serving.add(asyncio.current_task())
        upstream = None
        broken = (OSError, asyncio.IncompleteReadError)
        with contextlib.suppress(*broken):
            upstream = await asyncio.open_connection(*self._upstream, limit=1 << 20)
            while True:
                request = await _read_request(reader)
                self.running += 1
                self.most = max(self.most, self.running)
                self.requests[request.path] += 1
                self.times.append(time.monotonic())
                try:
                    await asyncio.sleep(self.latency)
                    await self._answer(request, reader, writer, *upstream)
                finally:
                    self.running -= 1
        self._open.discard(writer)
        self._serving.discard(asyncio.current_task())
        writer.close()
        if upstream:
            upstream[1].close()

    async def _answer(self, request, reader, writer, server_reader, server_writer) -> None:
        fault = next((each for each in self.faults if each.befalls(request, self._chance)), None)
        name = fault.name if fault else ""
        while name.startswith("hold") and fault in self.faults:  # noqa: ASYNC110  a thread removes it
            await asyncio.sleep(0.001)
        if name.endswith("reset"):
            _reset(writer)
            raise ConnectionResetError
        if name == "stall":
            await reader.read()  # until the client gives up
            raise ConnectionResetError
        if name == "status":
            lines = {"Content-Length": str(len(fault.body)), **fault.headers}
            head = f"HTTP/1.1 {fault.status}\r\n".encode() + _written(lines)
            writer.write(head + (b"" if request.method == "HEAD" else fault.body))
            await writer.drain()
            return
        sent = _with_headers(request.head, {"Range": ""}) if name == "whole" else request.head
        server_writer.write(sent + request.body)
        head, body = await _read_answer(server_reader, request.method)
        if name == "header":
            head = _with_headers(head, fault.headers)
        if name in {"flip", "invert"}:
            body = _damaged(body, name)
        if name in {"cut", "stall in body"}:
            writer.write(head + body[: len(body) // 2])
            await writer.drain()
            if name == "stall in body":
                await reader.read()
            raise ConnectionResetError
        self.sent[request.path] += len(body)  # before a client can have it, and ask for the count
        writer.write(head)
        piece = -(-len(body) // 10) if name == "slow" else len(body)
        for at in range(0, len(body), max(1, piece)):
            writer.write(body[at : at + piece])
            await writer.drain()
            await asyncio.sleep(fault.pause if fault else 0)


def _damaged(body: bytes, name: str) -> bytes:
    if name == "invert":
        return bytes(byte ^ 0xFF for byte in body)
    flipped = bytearray(body)
    flipped[len(body) // 2] ^= 1
    return bytes(flipped)


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOW)
    writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = await reader.readuntil(b"\r\n\r\n")
    method, target, _ = head.partition(b"\r\n")[0].decode().split(" ")
    body = await reader.readexactly(int(_header(head, "content-length") or 0))
    return Request(method, unquote(urlsplit(target).path), head, body)


async def _read_answer(reader: asyncio.StreamReader, method: str) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    if method == "HEAD":
        return head, b""
    if "chunked" not in _header(head, "transfer-encoding"):
        return head, await reader.readexactly(int(_header(head, "content-length") or 0))
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        body += line + await reader.readexactly(int(line, 16) + 2)
        if int(line, 16) == 0:
            return head, body


def _header(head: bytes, name: str) -> str:
    for line in head.decode("latin-1").split("\r\n")[1:]:
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _with_headers(head: bytes, headers: dict[str, str]) -> bytes:
    names = {name.lower() for name in headers}
    lines = head.decode("latin-1").split("\r\n")[:-2]
    kept = [line for line in lines if line.partition(":")[0].lower() not in names]
    given = {name: value for name, value in headers.items() if value}
    return "\r\n".join([*kept, ""]).encode("latin-1") + _written(given)


def _written(headers: dict[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n"
