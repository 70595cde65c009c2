"""Very many attempts in killable processes, with random kills: of runners, of what handlers left behind, of the supervisor.

    python -m tests.lib.execution.kills ATTEMPTS [SEED]     with progress; exits 1 if anything was lost, doubled or left

A third of them is short, so that runners have many in hand when they are killed.
Counted at the end: reports and entries of each attempt, whose output each was, recorder slots, room, descriptors, zombies, processes left.
"""

import contextlib
import gc
import json
import os
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from settled import App
from settled.core.canonical import canonical_text
from settled.core.words import Isolation
from settled.execution.job import End, Job, Report
from settled.execution.pool import Execution
from settled.presence import Presence
from tests.lib.execution.inprocess import SECOND_US, make_job
from tests.lib.execution.outside import APPS, LIBRARY, SUPERVISOR, children_of, kill, processes, zombies_of

RUNNERS: Final = 4


class Weather(NamedTuple):
    """How often what is done and killed for each attempt. Handlers may hide their children; `slots` bounds how many are under way."""

    name: str
    slots: int
    does: dict[str, int]
    leaves: float  # attempts that leave a process
    kills: dict[str, float]
    may_hide: bool


_DOES: Final = {"return": 60, "large": 4, "raise": 8, "reject": 8, "thread": 3, "exit": 4, "hang": 3, "open": 4, "leave": 2}
_KILLS: Final = {"runner": 0.05, "child": 0.05, "term": 0.01, "stop": 0.01}
WEATHERS: Final = (
    Weather("hidden children", 2 * RUNNERS, _DOES, 0.1, _KILLS, may_hide=True),
    Weather("supervisors killed", 2 * RUNNERS, _DOES, 0.1, {**_KILLS, "supervisor": 0.002}, may_hide=False),
    Weather(
        "short ones",
        40 * RUNNERS,
        {"return": 400, "large": 4, "raise": 2, "reject": 20, "exit": 2},
        0.0,
        {"runner": 0.02, "term": 0.003, "stop": 0.003, "supervisor": 0.001},
        may_hide=False,
    ),
)


@dataclass
class Found:
    """What was counted. `wrong` names all that must not be."""

    ends: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Storm:
    """One Execution under kills."""

    def __init__(self, folder: Path, draw: random.Random, weather: Weather) -> None:
        self._draw, self._weather, self._log = draw, weather, folder / "entered"
        self._log.touch()
        self._sleep = str(10_000_000 + secrets.randbelow(9_000_000))  # by this the children are known
        self._arrived: SimpleQueue[Report] = SimpleQueue()
        self._app = App(folder / "settled.db")
        self._app.create_database()
        self._presence = Presence(self._app.shell, kind="worker", contracts=(), slots=weather.slots)
        self._all_slots = self._presence.free_slots
        self._execution = Execution(
            resolve=self._app.contract,
            arrived=self._arrived.put,
            clock=self._app.shell.clock.now,
            app_ref="chaos:app",
            process_slots=RUNNERS,
            recorder=self._presence.recorder,
            incarnation=self._presence.incarnation,
            runner_options={"runner_attempts_max": 150},
        )
        self._flying: dict[int, tuple[Job, int]] = {}
        self._ends: dict[int, End] = {}
        self.found = Found()

    def run(self, attempts: int, tell: Callable[[int], None]) -> None:
        """Run so many attempts, killing meanwhile; wait for the last report."""
        started = 0
        while started < attempts or self._flying:
            while started < attempts and self._execution.free(Isolation.PROCESS) > 0 and self._presence.free_slots > 0:
                self._start(started)
                started += 1
                self._strike()
                if started % 100 == 0:
                    tell(started)
            self._take()

    def _start(self, n: int) -> None:
        does = self._draw.choices(list(self._weather.does), list(self._weather.does.values()))[0]
        arguments: dict[str, Any] = {"n": n, "do": does, "sleep": self._sleep, "log": str(self._log)}
        if self._draw.random() < self._weather.leaves:
            arguments["child"] = self._draw.choice(["group", "session", "orphan", *(["hidden"] if self._weather.may_hide else [])])
        timeout = 0.4 if does == "hang" else 60.0
        job = make_job(Isolation.PROCESS, contract="act", arguments=canonical_text(arguments, "arguments"), timeout_seconds=timeout)
        slot = self._presence.take_slot(job.row, job.attempt)
        job = make_job(
            Isolation.PROCESS, contract="act", arguments=job.arguments, timeout_seconds=timeout,
            row=job.row, operation_id=str(n), slot=slot, kill_grace_us=SECOND_US // 5,
        )  # fmt: skip
        self._flying[job.row] = job, n
        self._execution.start(job)

    def _take(self) -> None:
        try:
            report = self._arrived.get(timeout=120)
        except Empty:
            self.found.wrong.append(f"no report for {len(self._flying)} attempts within 120 s")
            self._flying.clear()
            return
        flown = self._flying.pop(report.job.row, None)
        if flown is None:
            self.found.wrong.append(f"a second report: {report.end} of {report.job.operation_id}")
            return
        job, n = flown
        self.found.ends[report.end.value] += 1
        self._ends[n] = report.end
        if report.end is End.RETURNED and json.loads(report.output or "{}").get("n") != n:
            self.found.wrong.append(f"attempt {n} was told another's output")
        if report.end is End.REJECTED and report.error_text != str(n):
            self.found.wrong.append(f"attempt {n} was told another's rejection")
        assert job.slot is not None
        self._presence.give_slot(job.slot, job.row, job.attempt)

    def _strike(self) -> None:
        for whom, chance in self._weather.kills.items():
            if self._draw.random() < chance:
                victims = self._victims(whom)
                if victims:
                    self.found.killed[whom] += 1
                    self._hit(whom, self._draw.choice(victims))

    def _victims(self, whom: str) -> list[int]:
        supervisors = children_of(os.getpid(), SUPERVISOR)
        if whom == "supervisor":
            return supervisors
        if whom == "child":
            return list(processes(self._sleep))
        return [runner for supervisor in supervisors for runner in children_of(supervisor, "settled.execution.runner")]

    @staticmethod
    def _hit(whom: str, pid: int) -> None:
        kill(pid, {"term": 15, "stop": 19}.get(whom, 9))
        if whom == "stop":  # frozen for a moment
            time.sleep(0.05)
            kill(pid, 18)

    def close(self) -> None:
        """End all, and count what is left."""
        wrong = self.found.wrong
        entered = Counter(map(int, self._log.read_text().split()))
        for n, end in self._ends.items():
            if entered[n] > 1 or (end is End.NEVER_ENTERED and entered[n]) or (end is End.RETURNED and not entered[n]):
                wrong.append(f"attempt {n} was entered {entered[n]} times and reported as {end.value}")
        if self._execution.running or self._execution.free(Isolation.PROCESS) < RUNNERS:
            wrong.append(f"room leaked: {self._execution.running} run, {self._execution.free(Isolation.PROCESS)} of {RUNNERS} are free")
        if self._presence.free_slots != self._all_slots:
            wrong.append(f"recorder slots leaked: {self._presence.free_slots} of {self._all_slots} are free")
        self._execution.close(kill=True)
        if not self._execution.join(60):
            wrong.append("it did not end")
        self._presence.close()
        self._app.close()
        left = _settles(lambda: processes(self._sleep))
        wrong += [f"processes left: {left}"] if left else []
        zombies = _settles(lambda: zombies_of(os.getpid()))
        wrong += [f"zombies left: {zombies}"] if zombies else []
        for pid in left:
            kill(pid)


def _settles(look: Callable[[], Any]) -> Any:
    """Look until nothing is there any more, for a while; return what is."""
    until = time.monotonic() + 20
    while (seen := look()) and time.monotonic() < until:
        time.sleep(0.05)
    return seen


def run(attempts: int, seed: int, tell: Callable[[str], None] = lambda line: None) -> Found:
    """Run a third of the attempts in each weather; return what was counted."""
    draw, total = random.Random(seed), Found()
    os.environ["PYTHONPATH"], before_path, here = LIBRARY, os.environ.get("PYTHONPATH"), os.getcwd()
    os.chdir(APPS)
    try:
        _one(1, draw, WEATHERS[0], Found(), tell)  # what is opened once is open now
        before = open_files()
        for weather in WEATHERS:
            _one(attempts // len(WEATHERS), draw, weather, total, tell)
        _settles(lambda: len(open_files()) > len(before))
    finally:
        os.chdir(here)
        if before_path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before_path
    if len(now := open_files()) > len(before):
        total.wrong.append(f"descriptors leaked: {sorted(set(now.items()) - set(before.items()))}")
    return total


def open_files() -> dict[str, str]:
    """Return what each descriptor of this process is."""
    gc.collect()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _one(attempts: int, draw: random.Random, weather: Weather, total: Found, tell: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        storm, began = Storm(Path(folder), draw, weather), time.monotonic()
        killed = storm.found.killed
        storm.run(attempts, lambda n: tell(f"{weather.name}: {n} of {attempts}, {time.monotonic() - began:.0f} s, killed {dict(killed)}"))
        storm.close()
    total.ends += storm.found.ends
    total.killed += storm.found.killed
    total.wrong += storm.found.wrong


def main(arguments: list[str]) -> int:
    attempts, seed = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else secrets.randbelow(1_000_000)
    print(f"{attempts} attempts, seed {seed}", flush=True)
    began = time.monotonic()
    found = run(attempts, seed, lambda line: print(line, flush=True))
    print(f"ends {dict(found.ends)}\nkilled {dict(found.killed)}\n{found.ends.total()} reports in {time.monotonic() - began:.0f} s")
    print("\n".join(found.wrong) or "no slot, descriptor, zombie or process was left, and each attempt had one report of its own")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
