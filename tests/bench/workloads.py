"""The workloads: each sets up fresh stores and processes for one side, measures once, and leaves nothing behind.

Promise: ends only processes that it started. A figure is a rate per second or a time in milliseconds; `done` counts what the
store itself shows as settled.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.floor import ask
from tests.bench.measuring import FIRST_STARTED, cpu_seconds, peak_megabytes

PROJECT = Path(__file__).parents[2]
Figures = dict[str, float]
_DONE = {
    "floor": "SELECT count(*) FROM effect WHERE state = 'confirmed'",
    "settled": "SELECT coalesce(sum(count), 0) FROM tally WHERE status = 'confirmed'",
}
SLEEPERS = 64
RUNNERS = 4


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much to do. Seconds of a submitting run, effects of a consuming one, samples of latency, seconds of idling."""

    seconds: float = 1.5
    effects: int = 10_000
    samples: int = 100
    idle_seconds: float = 10.0
    slots: int = 32
    limit_seconds: float = 60.0


QUICK = Size(seconds=0.5, effects=500, samples=20, idle_seconds=3.0)


@dataclass
class Stage:
    """One fresh store of one side, and the processes around it."""

    side: str
    root: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.root / ("floor.db" if self.side == "floor" else "settled.db")

    def done(self) -> int:
        """Return how many effects the store shows as settled."""
        return int(ask(self.store, _DONE[self.side]))

    def start(self, role: str, **options: Any) -> "subprocess.Popen[bytes]":
        """Start a role in a process of its own."""
        paths = [str(PROJECT / one) for one in ("lib", "worker", "cli", ".")] + [os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "SETTLED_DATABASE": str(self.root / "settled.db")}
        command = [sys.executable, "-m", "tests.bench.roles", self.side, role, str(self.root), json.dumps(options)]
        with (self.root / f"{role}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd=PROJECT, env=environ
            )
        self.started.append(process)
        return process

    def finish(self, process: "subprocess.Popen[bytes]", seconds: float = 120.0) -> Figures:
        """Wait for a role and return its figures. Raises RuntimeError with the end of its log."""
        out, _ = process.communicate(timeout=seconds)
        if process.returncode != 0:
            said = "".join(path.read_text(errors="replace")[-1500:] for path in sorted(self.root.glob("*.log")))
            raise RuntimeError(f"a process of {self.side} ended with {process.returncode}: {said}")
        figures: Figures = json.loads(out.decode().splitlines()[-1])
        return figures

    def play(self, role: str, **options: Any) -> Figures:
        """Start a role and wait for it."""
        return self.finish(self.start(role, **options))

    def start_worker(self, **options: Any) -> "subprocess.Popen[bytes]":
        """Start a worker and return once it listens."""
        worker = self.start("work", **options)
        bell = "bell" if self.side == "floor" else "settled.db.run/*.bell"
        wait_until(lambda: any(self.root.glob(bell)) or worker.poll() is not None, 30.0, "the worker to listen")
        if worker.poll() is not None:
            self.finish(worker)
        return worker

    def close(self) -> None:
        for process in self.started:
            stop(process)
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self.root, ignore_errors=True)


@contextmanager
def a_stage(side: str, folder: Path | None) -> Iterator[Stage]:
    """Give a fresh store in `folder` (None: the system's for temporary files)."""
    stage = Stage(side, Path(tempfile.mkdtemp(prefix=f"bench-{side}-", dir=folder)))
    try:
        stage.play("prepare")
        yield stage
    finally:
        stage.close()


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End one process of ours: politely, then not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(condition: Any, seconds: float, what: str) -> None:
    """Look every few milliseconds. Raises TimeoutError naming `what`."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.003)


def submit(stage: Stage, size: Size) -> Figures:
    """One caller, one commit each."""
    return stage.play("submit", seconds=size.seconds)


def submit4(stage: Stage, size: Size) -> Figures:
    """Four callers at once."""
    start_at = time.time() + 2.5
    callers = [stage.start("submit", seconds=size.seconds, start_at=start_at) for _ in range(4)]
    figures = [stage.finish(one) for one in callers]
    return {"rate": sum(one["rate"] for one in figures), "p99_ms": max(one["p99_ms"] for one in figures)}


def bulk(stage: Stage, size: Size) -> Figures:
    """A hundred to a commit."""
    return stage.play("bulk", seconds=size.seconds)


def e2e_thread(stage: Stage, size: Size) -> Figures:
    """Waiting effects, handlers in threads."""
    return _consume(stage, size, "thread", size.slots)


def e2e_process(stage: Stage, size: Size) -> Figures:
    """Waiting effects, handlers in runner processes that are there already. The floor has threads only."""
    if stage.side == "floor":
        return _consume(stage, size, "thread", RUNNERS)
    stage.start_worker(kind="process", slots=size.slots)
    stage.play("occupy", kind="occupy", count=RUNNERS)
    return _consume(stage, size, "process", size.slots, delay=2.0)


def sleep(stage: Stage, size: Size) -> Figures:
    """Handlers that wait 10 ms, 64 at once."""
    return _consume(stage, size, "sleep", SLEEPERS)


def latency(stage: Stage, size: Size) -> Figures:
    """From submit to result, the worker idle before."""
    stage.start_worker(kind="thread", slots=size.slots)
    return stage.play("latency", count=size.samples)


def inline(stage: Stage, size: Size) -> Figures:
    """In the caller's own process."""
    return stage.play("inline", seconds=size.seconds)


def idle(stage: Stage, size: Size) -> Figures:
    """A worker with nothing to do, once it has settled down."""
    worker = stage.start_worker(kind="thread", slots=size.slots)
    _let_settle(worker.pid)
    before, began = cpu_seconds(worker.pid), time.monotonic()
    time.sleep(size.idle_seconds)
    percent = 100 * (cpu_seconds(worker.pid) - before) / (time.monotonic() - began)
    return {"cpu_percent": percent, "peak_mb": peak_megabytes(worker.pid)}


def _let_settle(pid: int) -> None:
    """Wait until its start is over: on a busy machine that takes longer than two seconds. One that spins never settles."""
    give_up_at, took = time.monotonic() + _SETTLE_SECONDS_MAX, 1.0
    time.sleep(1.0)
    while took > _SETTLED_CPU_SECONDS and time.monotonic() < give_up_at:
        before = cpu_seconds(pid)
        time.sleep(1.0)
        took = cpu_seconds(pid) - before


def _consume(stage: Stage, size: Size, kind: str, slots: int, *, delay: float = 0.0) -> Figures:
    """Let a worker take waiting effects; from the first handler's start to the last outcome in the store."""
    before = stage.done()
    stage.play("seed", kind=kind, count=size.effects, delay=delay)
    worker = stage.started[1] if delay else stage.start_worker(kind=kind, slots=slots)
    cpu = cpu_seconds(worker.pid)
    wait_until(lambda: stage.done() - before >= size.effects or worker.poll() is not None, size.limit_seconds, "all outcomes")
    took = time.monotonic() - int((stage.root / FIRST_STARTED).read_text()) / 1e9
    return {"rate": (stage.done() - before) / took, "cpu_ms": 1_000 * (cpu_seconds(worker.pid) - cpu) / size.effects}


_SETTLE_SECONDS_MAX = 60.0
_SETTLED_CPU_SECONDS = 0.05

WORKLOADS = {
    one.__name__: one for one in (submit, submit4, bulk, e2e_thread, e2e_process, sleep, latency, inline, idle)
}
