"""A faulty proxy in a process of its own.

Workers that are forked while a proxy runs here would inherit its sockets: its port would stay
taken, and its connections open.
"""

import multiprocessing
from collections import Counter
from multiprocessing.managers import BaseManager
from typing import Any

from faulty_proxy import FaultyProxy


class _Served:
    """A proxy as calls from another process reach it."""

    def __init__(self, upstream: str) -> None:
        self._proxy = FaultyProxy(upstream)
        self._proxy.__enter__()

    def get(self, name: str) -> Any:
        return getattr(self._proxy, name)

    def set(self, name: str, value: Any) -> None:
        setattr(self._proxy, name, value)

    def call(self, name: str, details: dict[str, Any]) -> None:
        details = dict(details)
        arguments = details.pop("arguments", ())
        getattr(self._proxy, name)(*arguments, **details)


class _Manager(BaseManager):
    pass


_Manager.register("Served", _Served)


class ProxyProcess:
    """What tests use of a `FaultyProxy`, which runs elsewhere, from `with` to its end."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._manager = _Manager(ctx=multiprocessing.get_context("spawn"))

    def __enter__(self) -> "ProxyProcess":  # noqa: PYI034  Self comes with Python 3.11
        self._manager.start()
        self._served = self._manager.Served(self._upstream)
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.shutdown()

    @property
    def url(self) -> str:
        return self._served.get("url")

    @property
    def requests(self) -> Counter[str]:
        return self._served.get("requests")

    @property
    def sent(self) -> Counter[str]:
        return self._served.get("sent")

    @property
    def most(self) -> int:
        return self._served.get("most")

    def delay(self, seconds: float) -> None:
        """Add latency to each request."""
        self._served.set("latency", seconds)

    def fault(self, name: str, **details: Any) -> None:
        self._served.call("fault", {"arguments": (name,), **details})

    def heal(self) -> None:
        self._served.call("heal", {})

    def release(self) -> None:
        self._served.call("release", {})

    def go_away(self) -> None:
        self._served.call("go_away", {})

    def come_back(self) -> None:
        self._served.call("come_back", {})
