"""Marks cover what they promise, by a pretended driver and pretended streams.

That CUDA's own cover every stream is shown in test_gpu.py, on a device.
"""

import ctypes
from typing import Any

import pytest

from dataporter.engine import cuda_events as marks


class Event:
    """Passes when what it was recorded on, at that time, has been done."""

    def __init__(self) -> None:
        self.covers: list[str] = []
        self.done = False
        self.cuda_event = id(self)
        Event.made[self.cuda_event] = self

    made: dict[int, "Event"] = {}  # noqa: RUF012

    def record(self, stream: str) -> None:
        self.covers = [stream]

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = True


class Library:
    """The driver: device 1 of three is not in use."""

    def __init__(self) -> None:
        self.cuCtxRecordEvent = Recording()

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = 10 + index
        return 0

    def cuDevicePrimaryCtxGetState(self, device: Any, _flags: Any, active: Any) -> int:  # noqa: N802
        active._obj.value = device.value != 11
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        context._obj.value = 100 + device.value
        return 0


class Recording:
    outcome = 0

    def __call__(self, context: ctypes.c_void_p, event: int) -> int:
        Event.made[event].covers = [f"all of {context.value}"]
        return self.outcome


@pytest.fixture
def capturing(monkeypatch) -> dict[str, bool]:
    state = {"now": False}
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr("torch.cuda.default_stream", lambda index=0: f"default of {index}")
    monkeypatch.setattr("torch.cuda.current_stream", lambda: "current")
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: state["now"])
    monkeypatch.setattr(marks, "_noted", set())
    return state


@pytest.fixture
def library(monkeypatch, capturing) -> Library:
    library = Library()
    driver = marks._Driver(library)  # type: ignore[arg-type]
    monkeypatch.setattr(marks, "_driver", lambda: driver)
    return library


def covered(mark: marks.Mark | None) -> list[str]:
    assert mark is not None
    return sorted(stream for event in mark._events for stream in event.covers)


def test_a_mark_covers_all_that_every_device_in_use_was_given(library):
    assert covered(marks.mark()) == ["all of 110", "all of 112"]


def test_a_mark_has_passed_when_every_device_is_done(library):
    mark = marks.mark()
    assert mark is not None
    first, second = mark._events
    first.done = True
    assert not mark.passed()
    second.done = True
    assert mark.passed()
    other = marks.mark()
    assert other is not None
    other.wait()
    assert other.passed()


def test_a_graph_that_is_being_captured_is_left_alone(library, capturing):
    mark = marks.mark()
    assert mark is not None
    mark.wait()
    capturing["now"] = True
    assert marks.mark() is None
    assert not mark.passed()
    capturing["now"] = False
    library.cuCtxRecordEvent.outcome = 900  # captured in another thread
    assert marks.mark() is None


def test_with_an_older_driver_a_mark_covers_the_streams_that_are_known(monkeypatch, capturing):
    monkeypatch.setattr(marks, "_driver", lambda: None)
    assert covered(marks.mark()) == ["current", "default of 0"]
    marks.note_stream("of the copies")  # type: ignore[arg-type]
    monkeypatch.setattr("torch.cuda.current_stream", lambda: "another")
    marks.note_stream()
    monkeypatch.setattr("torch.cuda.current_stream", lambda: "current")
    for _ in range(2):
        assert covered(marks.mark()) == ["another", "current", "default of 0", "of the copies"]


def test_without_a_driver_nothing_is_asked_of_it(monkeypatch):
    def missing(_name: str) -> None:
        raise OSError

    monkeypatch.setattr("ctypes.CDLL", missing)
    marks._driver.cache_clear()
    try:
        assert marks._driver() is None
    finally:
        marks._driver.cache_clear()
