"""Draw where each microsecond of one effect goes: `python -m tests.bench.where`, which writes docs/where-time-goes.svg and .json.

A real worker takes real effects, while a stopwatch on its functions counts the CPU time of each stage on whatever thread it runs,
without what the stages inside it take. Waiting for the disk is no CPU time: it is counted for itself, beside it.
"""

import argparse
import importlib
import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.measuring import an_effect

DOCS: Final = Path(__file__).parents[2] / "docs"
# Stage, where it runs, and the function that is watched: module, name.
STAGES: Final = (
    ("find what is due", "loop", "settled.steps.claim", "find_ready"),
    ("decide the claim", "loop", "settled.steps.claim", "decide_claim"),
    ("fold, encode and hash the events", "loop", "settled.store.writer", "_prepare"),
    ("write row, events and output in SQLite", "loop", "settled.store.writer", "_all_at_once"),
    ("seal, tally, commit", "loop", "settled.store.scope", "Scope._commit"),
    ("take a recorder slot", "loop", "settled.presence", "Presence.take_slot"),
    ("make the job", "loop", "settled_worker.pump", "handler_job"),
    ("hand it to a thread", "loop", "settled.execution.pool", "Execution.start"),
    ("contest the entry under the slot's lock", "thread", "settled.execution.runs", "Runs.enter"),
    ("parse, call, make the output canonical", "thread", "settled.execution.calling", "Caller.call"),
    ("report", "thread", "settled.execution.runs", "Runs.end"),
    ("decide the end", "loop", "settled.steps.ends", "_move"),
    ("free the slot", "loop", "settled.presence", "Presence.give_slot"),
)
COLOURS: Final = {"loop": "#3b6ea5", "thread": "#c46b2d", "rest": "#8a8a8a"}


class Stopwatch:
    """CPU seconds of each stage, without those of the stages inside it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.waited = 0.0
        self.began_cpu: float | None = None  # of the whole process, when the first stage began: starting up is no part of an effect
        self._own = threading.local()

    def watch(self, stage: str, module: str, name: str) -> None:
        """Put the stopwatch on one function."""
        *path, last = name.split(".")
        owner = importlib.import_module(module)
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, self._watched(stage, getattr(owner, last)))

    def _watched(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        own, seconds, is_commit = self._own, self.seconds, stage.endswith("commit")

        def watched(*arguments: Any, **named: Any) -> Any:
            if self.began_cpu is None:
                self.began_cpu = time.process_time()
            stack = own.__dict__.setdefault("inside", [0.0])
            stack.append(0.0)
            began, began_wall = time.thread_time(), time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                took = time.thread_time() - began
                seconds[stage] += took - stack.pop()
                stack[-1] += took
                if is_commit:
                    self.waited += time.perf_counter() - began_wall - took

        return watched


def measure(effects: int, slots: int, folder: Path | None) -> dict[str, Any]:
    """Let a worker in this process take so many effects; return microseconds of each stage for one."""
    root = Path(tempfile.mkdtemp(prefix="where-", dir=folder))
    os.environ["SETTLED_DATABASE"] = str(root / "settled.db")
    from settled.config.settings import Settings, WorkerSettings
    from settled.logs import configure_logs
    from settled_worker.worker import Worker
    from tests.bench.effects import EFFECTS, app
    from tests.bench.floor import ask

    configure_logs("json", "info", (root / "log").open("w"))
    app.create_database()
    app.reference = "tests.bench.effects:app"
    for first in range(0, effects, 500):
        app.submit_many([(EFFECTS["thread"], an_effect(first + number)) for number in range(500)])
    app.close()
    watch = Stopwatch()
    for stage, _, module, name in STAGES:
        watch.watch(stage, module, name)
    worker = Worker(app, Settings(worker=WorkerSettings(slots=slots)), app_reference=app.reference)
    ended = threading.Thread(target=lambda: _end_when(lambda: ask(root / "settled.db", _LEFT) == 0), daemon=True)
    ended.start()
    began = time.perf_counter()
    worker.run()
    cpu = time.process_time() - (watch.began_cpu or 0.0)
    per = {stage: 1e6 * watch.seconds[stage] / effects for stage, *_ in STAGES}
    return {
        "effects": effects,
        "slots": slots,
        "stages_us": {stage: round(one, 2) for stage, one in per.items()},
        "rest_us": round(1e6 * cpu / effects - sum(per.values()), 2),
        "waited_for_commits_us": round(1e6 * watch.waited / effects, 2),
        "wall_us": round(1e6 * (time.perf_counter() - began) / effects, 2),
    }


_LEFT: Final = "SELECT count(*) FROM operation WHERE status IN ('prepared', 'dispatched')"


def _end_when(is_over: Callable[[], bool]) -> None:
    while not is_over():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)


def draw(figures: dict[str, Any]) -> str:
    """Return a bar for each stage, longest possible 420 wide."""
    stages = [(stage, where, figures["stages_us"][stage]) for stage, where, *_ in STAGES]
    stages += [("the rest: loop, logs, garbage, the stopwatch", "rest", figures["rest_us"])]
    widest = max(one for _, _, one in stages)
    total = sum(one for _, _, one in stages)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="820" height="{46 + 24 * len(stages)}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="20">CPU microseconds of one effect, claim to outcome: {total:.0f} together '
        f"(blue: the worker's loop, orange: the handler's thread)</text>",
    ]
    for number, (stage, where, microseconds) in enumerate(stages):
        top = 34 + 24 * number
        length = max(1, 420 * microseconds / widest)
        lines += [
            f'<text x="320" y="{top + 13}" text-anchor="end">{stage}</text>',
            f'<rect x="330" y="{top}" width="{length:.0f}" height="17" fill="{COLOURS[where]}"/>',
            f'<text x="{336 + length:.0f}" y="{top + 13}">{microseconds:.1f}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.where", description=__doc__)
    parser.add_argument("--effects", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--tmp", type=Path)
    parser.add_argument("--into", type=Path, default=DOCS)
    options = parser.parse_args(arguments)
    figures = measure(options.effects, options.slots, options.tmp)
    (options.into / "where-time-goes.json").write_text(json.dumps(figures, indent=1) + "\n")
    (options.into / "where-time-goes.svg").write_text(draw(figures))
    print(json.dumps(figures, indent=1), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
