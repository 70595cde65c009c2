"""How often an effect makes the disk sync, counted from outside: by strace, over everything that the processes do.

A sync is what an effect costs on a real disk, and the one figure that does not depend on the machine.
"""

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.bench.workloads import PROJECT
from tests.conftest import eventually

STRACE = shutil.which("strace")
LONE_EFFECTS = 9
MANY = 600

CALLER = """
import sys
from tests.bench.effects import EFFECTS, app
from tests.bench.measuring import an_effect

effect = EFFECTS["thread"]
app.create_database()
print("ready", flush=True)
for line in sys.stdin:
    order, _, count = line.strip().partition(" ")
    if order == "one":
        app.wait(effect.submit(an_effect(0)).operation_id).result()
    elif order == "many":
        for op in app.submit_many([(effect, an_effect(number)) for number in range(int(count))]):
            app.wait(op.operation_id, timeout=60).result()
    elif order == "inline":
        app.execute(effect, an_effect(0)).result()
    print("done", flush=True)
"""
WORKER = """
from settled.config.settings import Settings
from settled_worker.worker import Worker
from tests.bench.effects import app

Worker(app, Settings(), app_reference="tests.bench.effects:app").run()
"""


class Traced:
    """A Python process whose syncs are counted; strace is not its parent, so that ending it ends all."""

    def __init__(self, code: str, folder: Path, name: str) -> None:
        self.syncs_file = folder / f"{name}.strace"
        paths = [*(str(PROJECT / one) for one in ("lib", "worker", "cli", ".")), os.environ.get("PYTHONPATH", "")]
        counter = [str(STRACE), "-D", "-f", "-e", "trace=fsync,fdatasync,sync,syncfs", "-e", "signal=none", "-o", str(self.syncs_file)]
        self.process = subprocess.Popen(
            [*counter, sys.executable, "-u", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "SETTLED_DATABASE": str(folder / "settled.db")},
            text=True,
        )

    def syncs(self) -> int:
        """Return how many have been begun. One that another thread interrupts takes two lines, of which the second has no bracket."""
        if not self.syncs_file.exists():
            return 0
        return sum("sync(" in line or "syncfs(" in line for line in self.syncs_file.read_text().splitlines())

    def ask(self, order: str) -> None:
        """Give an order and wait until it is done."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def why_not() -> str | None:
    """Return why nothing can be counted here, None where it can."""
    if STRACE is None:
        return "strace is missing, so no sync was counted. Install it: apt-get install strace"
    tried = subprocess.run([STRACE, "-e", "trace=fsync", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"strace may not trace here, so no sync was counted: {tried.stderr.strip()[-200:]}"


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Traced]:
    """A traced process that has made a ledger and takes orders."""
    refused = why_not()
    if refused is not None:
        pytest.skip(refused)
    with Traced(CALLER, tmp_path, "caller") as process:
        assert process.process.stdout is not None
        assert process.process.stdout.readline() == "ready\n"
        assert process.syncs() > 0, "making a ledger syncs nothing: the counter does not count"
        yield process


@pytest.fixture
def worker(caller: Traced, tmp_path: Path) -> Iterator[Traced]:
    """A traced worker that has done one effect already, so that nothing is left to be made for the first time."""
    with Traced(WORKER, tmp_path, "worker") as process:
        eventually(lambda: any((tmp_path / "settled.db.run").glob("*.bell")), seconds=60)
        caller.ask("one")
        yield process


def test_a_lone_effect_costs_three_syncs_from_submission_to_outcome(caller: Traced, worker: Traced) -> None:
    """One for the request, one for the dispatch before the handler starts, one for the outcome. A sweep may add its own now and then."""
    costs = []
    for _ in range(LONE_EFFECTS):
        before = caller.syncs() + worker.syncs()
        caller.ask("one")
        costs.append(caller.syncs() + worker.syncs() - before)
    assert statistics.median(costs) == 3, costs
    assert min(costs) == 3, f"an effect was shown as settled before its three commits were synced: {costs}"


def test_effects_that_wait_together_share_their_syncs(caller: Traced, worker: Traced) -> None:
    before = caller.syncs() + worker.syncs()
    caller.ask(f"many {MANY}")
    cost = (caller.syncs() + worker.syncs() - before) / MANY
    assert 0 < cost <= 0.1, f"{cost:.3f} syncs an effect"


def test_an_inline_effect_costs_two_syncs(caller: Traced) -> None:
    """One before the call, with the request and its dispatch, one after it."""
    caller.ask("inline")
    costs = []
    for _ in range(LONE_EFFECTS):
        before = caller.syncs()
        caller.ask("inline")
        costs.append(caller.syncs() - before)
    assert statistics.median(costs) == min(costs) == 2, costs
