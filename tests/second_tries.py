"""Second tries: for the few tests that a busy machine can upset for a reason nobody can remove.

Such a test carries `@pytest.mark.upset_by_load(reason=...)`. If it fails it runs once more, and the
end of the run lists it with its reason and its first failure. A failure of any other test, a test
that ran out of time and a crashed worker of pytest stay failures.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from time_limits import ran_out_of_time

MOST = 15
_PROPERTY = "second try"


class SecondTries:
    """Runs marked tests once more, and lists them."""

    def __init__(self) -> None:
        self._taken: list[tuple[str, str, str]] = []  # test, reason, first failure

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Check the marks: each has a reason, and there are few."""
        marked = set()
        for item in items:
            if (mark := item.get_closest_marker("upset_by_load")) is not None:
                marked.add(item.nodeid.partition("[")[0])
                if mark.args or set(mark.kwargs) != {"reason"}:
                    raise pytest.UsageError(f"{item.nodeid}: upset_by_load takes reason= alone.")
        if len(marked) > MOST:
            raise pytest.UsageError(
                f"{len(marked)} tests are marked upset_by_load, at most {MOST} may be. Remove what "
                "upsets one of them: " + ", ".join(sorted(marked))
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if (mark := item.get_closest_marker("upset_by_load")) is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failed = [report for report in reports if report.failed]
        if failed and not ran_out_of_time(item):
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            said = [_PROPERTY, mark.kwargs["reason"], _first_message(failed)]
            reports[-1].user_properties.append(tuple(said))  # type: ignore[arg-type]
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, *said in report.user_properties:
            if name == _PROPERTY:
                reason, first = map(str, said)
                self._taken.append((report.nodeid, reason, first))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if terminalreporter.config.getoption("verbose") < -1 and not self._taken:
            return
        terminalreporter.section(f"second tries: {len(self._taken)}")
        for test, reason, first in self._taken:
            terminalreporter.line(f"{test}\n  may be upset: {reason}\n  was: {first}")


def _first_message(reports: Iterable[pytest.TestReport]) -> str:
    crash = getattr(next(iter(reports)).longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else "a failure without a message")
