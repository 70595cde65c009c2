"""The crash matrix: how a handler is run × where it is killed and who × what the destination does, with real processes.

    python -m tests.worker.matrix [WORD…]     every cell whose name holds all words, with progress and a table at the end

One run kills one worker (or its runners) while every destination of apps/variants.py waits at the same point, starts another worker, and
waits until each operation is settled or before a person. What was done is counted in the destination's own ledger.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from settled import App, Operation, Status
from settled.core.words import SETTLED
from settled.store import audit
from tests.conftest import eventually
from tests.lib.execution.outside import is_alive, kill
from tests.worker.apps import variants
from tests.worker.apps.variants import MODES, VARIANTS, Variant
from tests.worker.services import LEASE, Place

APPS: Final = Path(__file__).with_name("apps")
SETTLE_SECONDS: Final = 90.0
POINTS: Final = {
    "before_commit": "the recorder slot says claimed, the claim is not committed",
    "after_commit": "the claim is committed, no handler was started",
    "entered": "the handler runs, nothing was announced",
    "sending": "ctx.sending() has returned, nothing has left",
    "mid_request": "the destination has the request and has done nothing; what it does comes after the kill",
    "committed": "the destination has done it and has not answered",
    "returned": "the handler has returned or raised, nothing is recorded",
    "recorded": "the ends are recorded and committed",
}
VICTIMS: Final = ("worker", "runner", "both")
HELD: Final = ("entered", "sending", "mid_request", "committed")  # points in the handler, where it waits to be killed


class Cell(NamedTuple):
    """One run: what is killed where, in which isolation."""

    mode: str
    point: str
    victim: str

    @property
    def name(self) -> str:
        return "-".join(self)


def impossible(cell: Cell) -> str | None:
    """Say why there is no such run, None where there is one."""
    mode, point, victim = cell
    if victim != "worker" and MODES[mode] != "process":
        return "there is no runner: the handler lives in the worker"
    if victim != "worker" and point in ("before_commit", "after_commit"):
        return "no runner has the attempt yet; an idle one leaves with its worker"
    if victim != "worker" and point == "recorded":
        return "no runner has the attempt any more; an idle one leaves with its worker"
    if victim == "both" and point == "returned":
        return "the runner has told its end and is idle, or it has not: then it is the runner's own death, which is tried"
    return None


def missing(cell: Cell, variant: Variant) -> str | None:
    """Say why a destination has no place in a run, None where it has one."""
    if cell.point == "committed" and variant.do != "commit":
        return "this destination does not commit while the caller waits"
    return None


CELLS: Final = tuple(
    cell for mode in MODES for point in POINTS for victim in VICTIMS if impossible(cell := Cell(mode, point, victim)) is None
)


class Expected(NamedTuple):
    """How an operation must end, and how often the destination may have been asked."""

    status: Status
    effects: int
    arrivals: int


def expected(cell: Cell, variant: Variant) -> Expected:
    """Say what must come of one operation. The rules of the design, written a second time and apart from it."""
    before_entry = cell.point in ("before_commit", "after_commit")
    # Where only the worker dies its runner goes on to the end; but ctx.sending() that cannot be told to a worker ends it.
    outlives = cell.victim == "worker" and MODES[cell.mode] == "process" and cell.point in HELD
    goes_on = outlives and not (variant.announces and cell.point == "entered")
    asked = goes_on or cell.point in ("mid_request", "committed", "returned", "recorded")  # by the attempt that was hit
    not_sent = before_entry or (variant.announces and cell.point == "entered" and not outlives)
    effects = 0 if variant.do == "never" else 1
    if not (asked or not_sent or variant.has_probe or variant.key == "kept"):
        return Expected(Status.QUARANTINED, 0, 0)  # nobody can tell, so nobody asks again
    if variant.do == "commit" and (cell.point == "recorded" or not asked):
        return Expected(Status.CONFIRMED, 1, 1)  # its answer came to a living worker
    if variant.has_probe:
        return Expected(Status.CONFIRMED, 1, 2 - effects)  # asked again only where the probe proved an absence
    if variant.key == "kept":
        return Expected(Status.CONFIRMED, 1, 2)  # asked again with the same key: the destination makes one of them
    return Expected(Status.QUARANTINED, effects, 1)


class Destination:
    """The destination's process and the truth in its ledger."""

    def __init__(self, folder: Path, marks: Path) -> None:
        command = [sys.executable, str(APPS / "destination.py"), str(folder / "destination.sqlite"), str(marks)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = self.process.stdout.readline().strip()

    def truth(self) -> dict[str, dict[str, int]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=10) as answer:
            found: dict[str, dict[str, int]] = json.load(answer)
        return found

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait(20)


class Outcome(NamedTuple):
    """What became of one operation: empty `wrong` is as it must be."""

    variant: str
    status: str
    effects: int
    arrivals: int
    story: str
    wrong: str


@contextlib.contextmanager
def destination(folder: Path, marks: Path) -> Iterator[Destination]:
    made = Destination(folder, marks)
    try:
        yield made
    finally:
        made.close()


def run(cell: Cell, folder: Path) -> list[Outcome]:
    """Kill and recover once; return what became of each operation."""
    here = Place(folder, shop="")
    try:
        with destination(folder, here.marks) as there:
            here.environ |= {"DESTINATION": there.port, "MODES": cell.mode}
            variants.declare(here.app, cell.mode)
            ids = _submit(here.app, cell)
            _hit(here, cell, ids)
            here.worker(settings=LEASE | _settings(cell), app="variants:app")
            _await_the_end(here.app, ids)
            time.sleep(0.0 if cell.point == "recorded" else variants.KEY_SECONDS)
            truth = there.truth()
            outcomes = [_judge(cell, name, here, one, truth) for name, one in ids.items()]
            found = audit.verify(here.app.ledger)
            assert not found, [str(one) for one in found]
            return outcomes
    finally:
        here.close()


def _submit(app: App, cell: Cell) -> dict[str, str]:
    names = [name for name, variant in VARIANTS.items() if missing(cell, variant) is None]
    return {name: app.submit(f"{cell.mode}_{name}", _arguments(cell, name)).operation_id for name in names}


def _arguments(cell: Cell, name: str) -> dict[str, Any]:
    return {"reference": name, "variant": name, "point": cell.point}


def _settings(cell: Cell) -> dict[str, str]:
    often = {f"SETTLED_CONTRACTS__{cell.mode}_{name}__PROBE_INTERVAL_SECONDS".upper(): "0.3" for name in VARIANTS}
    return {**often, "SETTLED_WORKER__PROCESS_RUNNERS": "6"}


def _hit(here: Place, cell: Cell, ids: dict[str, str]) -> None:
    """Bring every operation to the point, and kill."""
    point = {"before_commit": "after-slot", "after_commit": "after-claim", "recorded": "after-record-of-all"}.get(cell.point)
    settings = _settings(cell) | {"SETTLED_WORKER__PROCESS_RUNNERS": str(len(ids)), "REPORTS": str(len(ids))}
    if cell.point == "returned" and cell.victim == "worker":
        point = "before-record-of-all"
    elif cell.point == "returned":
        settings["CRASH_IN_RUNNER"] = "1"
    worker = here.worker(point=point, settings=settings, app="variants:app")
    if cell.point in HELD:
        mark = "arrived" if cell.point == "mid_request" else cell.point
        for name in ids:
            here.marked(f"{mark}-{name}", seconds=60)
        _kill(worker, cell, here, ids)
        here.mark("go")
    elif point is not None:
        assert worker.ended(60) == -9, worker.log.read_text()
    else:  # the runners have killed themselves; the worker that saw it is the one that goes on
        eventually(lambda: all(here.app.get(one).attempts for one in ids.values()), seconds=60)


def _kill(worker: Any, cell: Cell, here: Place, ids: dict[str, str]) -> None:
    match cell.victim:
        case "worker":
            kill(worker.pid)
            worker.process.wait(20)
        case "runner":
            runners = [int((here.marks / f"entered-{name}").read_text()) for name in ids]
            for runner in runners:
                kill(runner)
            eventually(lambda: not any(map(is_alive, runners)))
        case _:
            worker.kill_at_once()


def _await_the_end(app: App, ids: dict[str, str]) -> None:
    """Wait until each operation is settled or before a person; what is neither is judged as it stands."""
    ended = (*SETTLED, Status.QUARANTINED)
    until = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < until and not all(app.get(one).status in ended for one in ids.values()):
        time.sleep(0.05)


def _judge(cell: Cell, name: str, here: Place, one: str, truth: dict[str, dict[str, int]]) -> Outcome:
    op, must = here.app.get(one), expected(cell, VARIANTS[name])
    effects, arrivals = truth["effect"].get(name, 0), truth["arrival"].get(name, 0)
    wrong = [*_broken_promises(op, effects), *_differs(must, op, effects, arrivals)]
    return Outcome(name, op.status.value, effects, arrivals, " ".join(here.story(one)), "; ".join(wrong))


def _broken_promises(op: Operation, effects: int) -> Iterator[str]:
    if effects > 1:
        yield "TWO EFFECTS"
    if op.status is Status.CONFIRMED and not effects:
        yield "CONFIRMED WITHOUT AN EFFECT"
    if op.status in (Status.REJECTED, Status.CANCELLED) and effects:
        yield "A LOST EFFECT"
    if op.status not in (*SETTLED, Status.QUARANTINED) and not op.next_action:
        yield "STUCK"


def _differs(must: Expected, op: Operation, effects: int, arrivals: int) -> Iterator[str]:
    if (op.status, effects, arrivals) != must:
        yield f"expected {must.status}, {must.effects} effects, asked {must.arrivals} times"


# ------------------------------------------------------------------ the whole, by hand


def main(words: list[str]) -> int:
    cells = [cell for cell in CELLS if all(word in cell.name for word in words)]
    print(f"{len(cells)} runs of {len(VARIANTS)} destinations each\n", flush=True)
    rows, began = list[tuple[str, int, str]](), time.monotonic()
    for number, cell in enumerate(cells, 1):
        at = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
            outcomes = run(cell, Path(folder))
        wrong = [f"{one.variant}: {one.wrong} ({one.status}, {one.effects}, {one.arrivals}: {one.story})" for one in outcomes if one.wrong]
        rows.append((cell.name, len(outcomes), "\n    ".join(wrong)))
        took = time.monotonic() - at
        print(f"[{number}/{len(cells)}] {cell.name:40} {len(outcomes):3} {took:6.1f} s  {'WRONG' if wrong else 'ok'}", flush=True)
        for line in wrong:
            print(f"    {line}", flush=True)
    _print_table(cells, rows)
    bad = sum(1 for _, _, wrong in rows if wrong)
    total = sum(count for _, count, _ in rows)
    print(f"\n{total} operations in {len(rows)} runs, {bad} runs not as expected, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def _print_table(cells: list[Cell], rows: list[tuple[str, int, str]]) -> None:
    found = {name: ("ok" if not wrong else "WRONG") for name, _, wrong in rows}
    print(f"\n{'point':14}" + "".join(f"{mode + '/' + victim:>22}" for mode in MODES for victim in VICTIMS if _has_any(mode, victim)))
    for point in POINTS:
        shown = (found.get(Cell(mode, point, victim).name, "-") for mode in MODES for victim in VICTIMS if _has_any(mode, victim))
        print(f"{point:14}" + "".join(f"{one:>22}" for one in shown))
    print("\nNot there:")
    for cell in (Cell(mode, point, victim) for mode in MODES for point in POINTS for victim in VICTIMS):
        if why := impossible(cell):
            print(f"  {cell.name:40} {why}")


def _has_any(mode: str, victim: str) -> bool:
    return any(cell.mode == mode and cell.victim == victim for cell in CELLS)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    warnings.simplefilter("ignore", UserWarning)
    sys.exit(main(sys.argv[1:]))
