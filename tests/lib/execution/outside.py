"""Give the tests of process isolation an executor over the apps of this folder, and eyes for what it leaves behind."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import settled
from settled.clock import SystemClock
from settled.core.canonical import canonical_text
from settled.core.words import Isolation
from settled.execution.job import Job, Report
from settled.execution.process import ProcessExecutor
from tests.conftest import eventually
from tests.lib.execution.inprocess import Reports, make_job

APPS = Path(__file__).with_name("apps")
SUPERVISOR = "settled.execution.supervisor"
LIBRARY = str(Path(settled.__file__).parents[1])


class Outside:
    """A ProcessExecutor and where its reports arrive."""

    def __init__(self, app: str = "effects:app", slots: int = 2, **options: Any) -> None:
        self.reports = Reports()
        self._others = set(children_of(os.getpid(), SUPERVISOR))
        self.executor = ProcessExecutor(app_reference=app, arrived=self.reports, clock=SystemClock().now, slots=slots, **options)

    def start(self, contract: str, arguments: dict[str, Any] | None = None, **changes: Any) -> Job:
        job = make_job(Isolation.PROCESS, contract=contract, arguments=canonical_text(arguments or {}, "arguments"), **changes)
        self.executor.start(job)
        return job

    def run(self, contract: str, arguments: dict[str, Any] | None = None, **changes: Any) -> Report:
        report = self.reports.first(self.start(contract, arguments, **changes), seconds=20)
        assert len(self.reports.of(report.job)) == 1
        return report

    def supervisor(self) -> int:
        """Wait for the supervisor of this executor and return its pid."""
        return eventually(lambda: next(iter(set(children_of(os.getpid(), SUPERVISOR)) - self._others), 0))


@contextmanager
def outside(**options: Any) -> Iterator[Outside]:
    """An Outside that is closed with the test; nothing of it may be left then."""
    made = Outside(**options)
    try:
        yield made
    finally:
        made.executor.close(kill=True)
        assert made.executor.join(20)


def processes(mark: str = "") -> dict[int, list[str]]:
    """Return state, parent and so on of every process whose command line holds `mark`, as /proc/PID/stat tells them."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark in Path(f"/proc/{name}/cmdline").read_bytes().decode("utf-8", "replace"):
                found[int(name)] = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
    return found


def children_of(pid: int, mark: str = "") -> list[int]:
    return [child for child, facts in processes(mark).items() if int(facts[1]) == pid]


def zombies_of(pid: int) -> list[int]:
    return [child for child, facts in processes().items() if int(facts[1]) == pid and facts[0] == "Z"]


def is_alive(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pid_in(path: Path) -> int:
    """Wait for a process that writes its pid to `path`."""
    return int(eventually(lambda: path.exists() and path.read_text(), seconds=20))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
