"""The porter: the process that decodes blocks for one rank's main process and its workers.

`Porter` starts it as `python -m dataporter.shards.porting`, with a socket that listens already as
its argument and the dataset as its standard input. It imports no torch. The main thread reads
messages and `decoding` has the threads that decode. It ends when no process has been connected for
a while. Whatever it held is in the cache, or is decoded again: a new porter may follow it at any
time.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import socket
import sys
from typing import IO, Any, NoReturn

from dataporter.errors import ShardError
from dataporter.law import Order
from dataporter.shards.decoding import Decoders
from dataporter.shards.processes import Incoming, Notes, answer, is_ours, packed_error
from dataporter.shards.schedule import Standing

_LINGER = 3.0  # seconds without a connection after which a porter ends


class _Server:
    """The main thread: reads messages, and ends the process when nobody is there."""

    def __init__(self, listener: socket.socket, dataset: IO[bytes]) -> None:
        self._listener = listener
        self._dataset = dataset
        self.decoders: Decoders | None = None
        self._notes: Notes | None = None  # for the user
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._clients: set[Incoming] = set()
        self._orders: dict[Incoming, Order | None] = {}  # of each process that announces
        self._linger = _LINGER

    def serve(self) -> None:
        """Serve until no process has been connected for a while."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when those whom it serves have ended
        while True:
            events = self._selector.select(None if self._clients else self._linger)
            if not events and not self._clients:
                return
            for key, _ in events:
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.data)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if not is_ours(connection):
            connection.close()
            return
        client = Incoming(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, client)
        self._linger = _LINGER

    def _read(self, client: Incoming) -> None:
        messages = client.receive()
        if messages is None:
            self._drop(client)
            return
        for kind, *values in messages:
            if kind == "leave":  # the main process has closed its dataset
                self._linger = 0.0
                continue
            try:
                self._handle(self._started(), client, kind, values)
            except Exception as error:  # noqa: BLE001  it is raised where a block is needed
                if kind != "announce":
                    answer(client.connection, (packed_error(error), None))

    def _started(self) -> Decoders:
        """Start the decoders at the first message, and again if they could not start."""
        if self.decoders is None:
            self._dataset.seek(0)
            try:
                level, dataset = pickle.load(self._dataset)  # noqa: S301  from our own user
            except Exception as error:
                msg = (
                    f"The porter process cannot load the format of the dataset: {error}. "
                    "Define it in a module that can be imported."
                )
                raise ShardError(msg) from error
            self._notes = self._notes or Notes(level)
            self.decoders = Decoders(*dataset)
        return self.decoders

    def _handle(self, decoders: Decoders, client: Incoming, kind: str, values: list[Any]) -> None:
        if kind == "block":
            block, hits = values
            decoders.request(block, hits, client.connection)
        elif kind == "renew":
            (block,) = values
            decoders.cache.drop(block)
            decoders.request(block, 0, client.connection)
        elif kind == "stats":
            answer(client.connection, (None, decoders.statistics()))
        elif kind == "announce":
            has_order, *standing = values
            if has_order:
                self._orders[client] = None  # if it cannot be loaded here
                self._orders[client] = client.attachment()
            if order := self._orders.get(client):
                decoders.announce(client, Standing(order, *standing))
            while self._notes and self._notes.waiting:  # read at the next announcement or question
                answer(client.connection, self._notes.waiting.popleft())

    def _drop(self, client: Incoming) -> None:
        self._selector.unregister(client.connection)
        self._clients.discard(client)
        if self._orders.pop(client, None) is not None and self.decoders is not None:
            self.decoders.announce(client, None)
        client.close()


def serve(listener: socket.socket, dataset: IO[bytes]) -> NoReturn:
    """Be a porter at a listening socket, of a pickled dataset."""
    server = _Server(listener, dataset)
    server.serve()
    listener.close()  # from here on others start a new porter
    if server.decoders is not None:
        server.decoders.cache.abandon()
    os._exit(0)  # without waiting for decoders


def main() -> None:
    """Be a porter: the listening socket is the argument, the pickled dataset the input."""
    serve(socket.socket(fileno=int(sys.argv[1])), sys.stdin.buffer)


if __name__ == "__main__":
    main()
