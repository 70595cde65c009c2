"""Measure the product beside its floor on this machine, in one run of about two minutes: `make bench`.

Promise: a ratio compares neighbours in time. Each round runs both sides of a workload one after the other, for a shared disk may
change tenfold from one minute to the next. The figures say nothing about another machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.floor import driver
from tests.bench.measuring import syncs_a_second
from tests.bench.workloads import QUICK, WORKLOADS, Figures, Size, a_stage

SIDES = ("floor", "settled")
Figure = tuple[str, str, bool]
_RATE: Figure = ("rate", "a second", True)
# Of each workload the figures shown, their unit, and whether more is better.
SHOWN: dict[str, tuple[Figure, ...]] = dict.fromkeys(WORKLOADS, (_RATE,)) | {
    "latency": (("p50_ms", "ms, half", False), ("p99_ms", "ms, 99 of 100", False)),
    "idle": (("cpu_percent", "% of a core", False), ("peak_mb", "MB at most", False)),
}
ONCE = frozenset({"idle"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; return 1 if a workload failed."""
    options = _options(arguments)
    console = Console()
    size = QUICK if options.quick else Size()
    measured = {name: Measured(name) for name in options.only or WORKLOADS}
    run_rounds(measured.values(), size, options, console)
    results = [one.summary() for one in measured.values()]
    report = {"machine": machine(), "size": asdict(size), "results": results}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    console.print(table(results))
    return int(any(one["error"] for one in results))


@dataclass
class Measured:
    """What one workload has come to so far, on either side; `seconds` is how long its last round took."""

    name: str
    rounds: dict[str, list[Figures]] = field(default_factory=lambda: {side: [] for side in SIDES})
    error: str | None = None
    seconds: float = 0.0

    def measure(self, size: Size, folder: Path | None) -> None:
        """Run one round: both sides, one after the other. A failure is kept, and the other workloads go on."""
        began = time.monotonic()
        try:
            figures = {side: _once(self.name, side, size, folder) for side in SIDES}
        except (RuntimeError, TimeoutError, OSError, subprocess.TimeoutExpired) as failed:
            self.error = f"{type(failed).__name__}: {failed}"
            return
        for side in SIDES:
            self.rounds[side].append(figures[side])
        self.seconds = time.monotonic() - began

    def summary(self) -> dict[str, Any]:
        """Return the spread of each shown figure, and its ratio to the floor, the median of the rounds' own."""
        pairs = list(zip(self.rounds["floor"], self.rounds["settled"], strict=True))
        shown = []
        for figure, unit, more_is_better in SHOWN[self.name] if pairs else ():
            ratios = [ratio(low[figure], ours[figure], more_is_better) for low, ours in pairs]
            sides = {side: spread([one[figure] for one in self.rounds[side]]) for side in SIDES}
            known = [one for one in ratios if one is not None]
            shown.append({"figure": figure, "unit": unit, "of_floor": statistics.median(known) if known else None, **sides})
        return {"workload": self.name, "what": WORKLOADS[self.name].__doc__, "shown": shown, "rounds": self.rounds, "error": self.error}


def spread(figures: Sequence[float]) -> dict[str, float]:
    """Return median, least and most."""
    return {"median": statistics.median(figures), "least": min(figures), "most": max(figures)}


def run_rounds(workloads: Iterable[Measured], size: Size, options: argparse.Namespace, console: Console) -> None:
    """Run each workload once, then again while that fits into the time."""
    until = time.monotonic() + 60 * options.minutes
    for number in range(1 if options.quick else options.rounds):
        for one in workloads:
            again_in_time = one.name not in ONCE and one.error is None and time.monotonic() + one.seconds < until
            if number and not again_in_time:
                continue
            with console.status(f"round {number + 1}, {one.name}: {WORKLOADS[one.name].__doc__}"):
                one.measure(size, options.tmp)
            if one.error:
                console.print(f"{one.name} failed: {one.error}", style="red", markup=False, highlight=False)


def _once(name: str, side: str, size: Size, folder: Path | None) -> Figures:
    with a_stage(side, folder) as stage:
        syncs = syncs_a_second(stage.root)
        return {**WORKLOADS[name](stage, size), "syncs_before": syncs}


def ratio(floor: float, ours: float, more_is_better: bool) -> float | None:
    """Return how near `ours` comes to the floor: 1 is as good, less is worse. None where one of them is too small to be told from 0."""
    if not floor or not ours:
        return None
    return ours / floor if more_is_better else floor / ours


def table(results: Sequence[dict[str, Any]]) -> Table:
    """Lay the results out for people."""
    shown = Table(title="settled beside a plain SQLite with the same promises (one run, this machine)")
    shown.add_column("workload")
    shown.add_column("unit")
    for column in ("settled", "floor", "of the floor", "syncs a second"):
        shown.add_column(column, justify="right")
    for result in results:
        syncs = [one["syncs_before"] for side in SIDES for one in result["rounds"][side]]
        for number, one in enumerate(result["shown"]):
            first = number == 0
            shown.add_row(
                result["workload"] if first else "",
                one["unit"],
                *(_span(one[side]) for side in ("settled", "floor")),
                "" if one["of_floor"] is None else f"{one['of_floor']:.2f}",
                f"{min(syncs):,.0f} to {max(syncs):,.0f}" if first else "",
            )
    return shown


def _span(figure: dict[str, float]) -> str:
    def text(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    if figure["least"] == figure["most"]:
        return text(figure["median"])
    return f"{text(figure['median'])} ({text(figure['least'])} to {text(figure['most'])})"


def machine() -> dict[str, Any]:
    """Return what a reader must know of this machine."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": driver().sqlite_version,
        "folder": tempfile.gettempdir(),
    }


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.run", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*WORKLOADS], metavar="WORKLOAD", help=f"of: {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, default=3, help="of each workload at most, as the time allows (idle: one)")
    parser.add_argument("--minutes", type=float, default=2.0, help="begin no further round after this; the first is always made")
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--tmp", type=Path, help="a folder on the disk that is to be measured (default: the system's for temporary files)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
