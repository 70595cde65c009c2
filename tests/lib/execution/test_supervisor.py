"""What becomes of runners when the worker, the supervisor or both are of no use: no sender outlives its deadline."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from settled.clock import boot_us
from settled.execution.cgroup import group_is_empty, pids_in
from settled.execution.descendants import Seen, left_by
from tests.conftest import eventually, is_free
from tests.lib.execution.groups import handed_group
from tests.lib.execution.outside import APPS, LIBRARY, children_of, is_alive, kill, pid_in

TIMEOUT_SECONDS, GRACE_SECONDS = 2.0, 1.0
KILL_US = int((TIMEOUT_SECONDS + GRACE_SECONDS) * 1e6)
LATE_US = 1_500_000  # for the kill itself on a busy machine


class Worker:
    """apps/worker.py with one attempt under way."""

    def __init__(self, tmp_path: Path, contract: str, *, cgroup: Path | None = None, **arguments: Any) -> None:
        self.lock_file = tmp_path / "lock"
        self.entered, self.late = tmp_path / "entered", tmp_path / "late"
        given = json.dumps({"entered": str(self.entered), **arguments})
        command = [sys.executable, "worker.py", contract, given, str(TIMEOUT_SECONDS), str(GRACE_SECONDS), str(self.lock_file)]
        self.process = subprocess.Popen(
            command if cgroup is None else [*command, str(cgroup)],
            cwd=APPS,
            env={**os.environ, "PYTHONPATH": LIBRARY},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.told: list[dict[str, Any]] = []
        self.runner = self.supervisor = 0

    def begin(self) -> None:
        """Wait until the attempt is under way."""
        self.hear()
        self.hear()  # the report of the warm-up and the time of the claim, in this order
        self.claimed_boot_us: int = self.told[-1]["claimed_boot_us"]
        self.runner = pid_in(self.entered)
        (self.supervisor,) = children_of(self.process.pid, "settled.execution.supervisor")

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        self.told.append(json.loads(self.process.stdout.readline()))
        return self.told[-1]

    def group(self) -> list[int]:
        """Every process of the attempt that has told its pid, and the runner."""
        return [self.runner] + [int(file.read_text()) for file in self.late.parent.glob("late*.pid")]

    def boot_us_of_death(self) -> int:
        """Wait until nothing of the attempt is alive; return how long after the claim that was."""
        eventually(lambda: not any(map(is_alive, self.group())))
        return boot_us() - self.claimed_boot_us

    def end(self) -> None:
        for pid in filter(None, (self.process.pid, self.supervisor, *self.group())):
            kill(pid, signal.SIGCONT)
            kill(pid)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def start(contract: str = "hang", **arguments: Any) -> Worker:
            worker = Worker(tmp_path, contract, **arguments)
            stack.callback(worker.end)
            worker.begin()
            return worker

        yield start


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.promise("S131")
def test_without_a_worker_the_group_is_dead_at_the_deadline(start: Any, tmp_path: Path, number: signal.Signals) -> None:
    worker = start(path=str(tmp_path / "late"))
    os.kill(worker.process.pid, number)
    assert len(worker.group()) == 3
    assert KILL_US <= worker.boot_us_of_death() < KILL_US + LATE_US
    if number is signal.SIGSTOP:
        os.kill(worker.process.pid, signal.SIGCONT)
        assert worker.hear() == {"end": "timed_out", "fence": "process_killed"}
    else:
        eventually(lambda: not is_alive(worker.supervisor))
    assert not (tmp_path / "late").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.promise("S131")
def test_without_worker_and_supervisor_the_runner_ends_itself_and_its_group(start: Any, tmp_path: Path, number: signal.Signals) -> None:
    worker = start(path=str(tmp_path / "late"))
    os.kill(worker.process.pid, number)
    os.kill(worker.supervisor, number)
    assert len(worker.group()) == 3
    took_us = worker.boot_us_of_death()
    assert took_us < KILL_US + LATE_US
    if number is signal.SIGSTOP:
        assert took_us >= KILL_US


@pytest.fixture
def handed() -> Iterator[Path]:
    with handed_group() as group:
        yield group


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_in_a_group_the_runner_ends_what_has_changed_session_and_environment(
    start: Any, tmp_path: Path, handed: Path, number: signal.Signals
) -> None:
    worker = start(path=str(tmp_path / "late"), clear=True, cgroup=handed)
    assert set(worker.group()) <= set(pids_in(handed))
    os.kill(worker.process.pid, number)
    os.kill(worker.supervisor, number)
    assert len(worker.group()) == 3
    worker.boot_us_of_death()
    eventually(lambda: group_is_empty(handed))
    assert not (tmp_path / "late").exists()


def test_in_a_group_the_supervisor_ends_and_removes_all_of_it_before_it_says_gone(start: Any, tmp_path: Path, handed: Path) -> None:
    worker = start(path=str(tmp_path / "late"), clear=True, cgroup=handed)
    group = cgroup_of(worker.runner)
    assert group == cgroup_of(worker.group()[1]) == cgroup_of(worker.group()[2]) != cgroup_of(worker.supervisor)
    assert worker.hear() == {"end": "timed_out", "fence": "process_killed"}
    assert not any(map(is_alive, worker.group())) and not (handed / group.rpartition("/")[2]).exists()


def cgroup_of(pid: int) -> str:
    return next(line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::"))


@pytest.mark.promise("S131")
def test_a_runner_that_never_gives_up_the_interpreter_is_killed_by_the_supervisor(start: Any) -> None:
    worker = start("hold_interpreter")
    os.kill(worker.process.pid, signal.SIGKILL)
    assert worker.boot_us_of_death() < KILL_US + LATE_US


def test_even_without_supervisor_the_kernel_ends_a_runner_that_never_gives_up_the_interpreter(start: Any) -> None:
    worker = start("hold_interpreter")
    os.kill(worker.process.pid, signal.SIGKILL)
    os.kill(worker.supervisor, signal.SIGKILL)
    assert KILL_US <= worker.boot_us_of_death() < KILL_US + LATE_US


def test_an_attempt_that_ends_after_its_worker_died_lets_runner_and_supervisor_go(start: Any) -> None:
    worker = start(seconds=0.5, ignore=False)
    os.kill(worker.process.pid, signal.SIGKILL)
    eventually(lambda: not is_alive(worker.runner) and not is_alive(worker.supervisor))
    assert boot_us() - worker.claimed_boot_us < KILL_US


def test_the_lock_of_the_incarnation_is_held_until_the_last_runner_is_gone(start: Any) -> None:
    worker = start(ignore=False, seconds=1.0)
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()

    assert not is_free(worker.lock_file) and is_alive(worker.runner)
    assert eventually(lambda: is_free(worker.lock_file))
    assert not is_alive(worker.runner)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_for_the_service_does_not_stop_the_supervisor(start: Any, number: signal.Signals) -> None:
    worker = start(seconds=0.5, ignore=False)
    os.kill(worker.supervisor, number)
    assert worker.hear() == {"end": "returned", "fence": "returned"}


# Whose descendant is it?

ME, RUNNER, OTHER = 10, 20, 30
MARKS = {RUNNER: "t:1", OTHER: "t:2"}


def _seen(*processes: tuple[int, int, int]) -> dict[int, Seen]:
    fixed = ((ME, 1, ME), (RUNNER, ME, RUNNER), (OTHER, ME, OTHER))
    return {pid: Seen(pid, parent, session) for pid, parent, session in (*fixed, *processes)}


@pytest.mark.parametrize(
    ("processes", "left"),
    [
        ([(40, RUNNER, RUNNER)], [40]),
        ([(40, RUNNER, 40), (41, 40, 40)], [40, 41]),  # its own session, still below the runner
        ([(40, OTHER, OTHER), (41, 40, 41)], []),
        ([(40, ME, RUNNER)], [40]),  # orphaned, the session tells
        ([(40, ME, OTHER)], []),
        ([(2**22 + 1, ME, 2**22 + 1)], [2**22 + 1]),  # orphaned, nothing tells: counted
        ([(40, 1, 40)], []),  # nobody of ours
        ([(40, 99, RUNNER)], [40]),  # its parent ended during the look
    ],
)
def test_a_descendant_is_found_by_parent_session_and_mark(processes: list[tuple[int, int, int]], left: list[int]) -> None:
    assert left_by(RUNNER, MARKS, _seen(*processes), ME) == left
