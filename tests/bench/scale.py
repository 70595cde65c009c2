"""Measure how cost grows with what a ledger holds: `python -m tests.bench.scale`, some minutes for a million rows of each kind.

One real operation of each kind (settled, prepared for later, of unknown outcome) is made by the product and copied by SQL. Each
figure is then a ratio to the same figure of an empty ledger, measured in turn with it in the same run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.bench.measuring import FIRST_STARTED, an_effect, each_for, peak_megabytes, rate
from tests.bench.workloads import PROJECT, stop, wait_until

KINDS = ("settled", "prepared", "unknown")
_COPY = """INSERT INTO {table} ({columns}) SELECT {values} FROM (
             WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {count}) SELECT x FROM c) CROSS JOIN (
             SELECT * FROM {table} WHERE {key} = {one}) AS t"""
EFFECTS = 2_000


def fill(app: Any, row: int, count: int, first: int) -> None:
    """Copy the operation with this key `count` times; the copies' keys begin at `first`."""
    with app.ledger.write() as transaction:
        cursor = transaction.cursor
        for table, key in (("operation", "id"), ("payload", "operation"), ("event", "operation")):
            columns = [one[1] for one in cursor.execute(f"PRAGMA table_info({table})").fetchall()]
            made = {key: f"{first} + x", "operation_id": "t.operation_id || ':' || x"}
            values = ", ".join(made.get(one, f"t.{one}") for one in columns)
            cursor.execute(_COPY.format(table=table, columns=", ".join(columns), values=values, count=count, key=key, one=row))
        contract, status = cursor.execute("SELECT contract, status FROM operation WHERE id = ?", (row,)).fetchone()
        cursor.execute("UPDATE tally SET count = count + ? WHERE contract = ? AND status = ?", (count, contract, status))


def make(app: Any, effect: Any, lost: Any, kind: str, count: int) -> None:
    """Make one operation of this kind and copy it."""
    if kind == "prepared":
        made = effect.submit(an_effect(0), delay=timedelta(days=30))
    else:
        made = app.execute(effect if kind == "settled" else lost, an_effect(0))
    with app.ledger.read() as transaction:
        row = transaction.cursor.execute("SELECT id FROM operation WHERE operation_id = ?", (made.operation_id,)).fetchone()[0]
    if count:
        fill(app, row, count, (KINDS.index(kind) + 1) * 1_000_000_000)


def of(folder: Path, counts: dict[str, int]) -> dict[str, float]:
    """Make a ledger that holds so much, and measure. Runs in a process of its own."""
    os.environ["SETTLED_DATABASE"] = str(folder / "settled.db")
    from settled.config.settings import Settings
    from settled_worker.sweeps import Sweeper
    from tests.bench.effects import EFFECTS as declared
    from tests.bench.effects import app

    app.create_database()
    effect, lost = declared["thread"], declared["lost"]
    for kind in KINDS:
        make(app, effect, lost, kind, counts.get(kind, 0))
    with app.ledger.read() as transaction:
        transaction.cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    figures = {"bytes": float((folder / "settled.db").stat().st_size)}
    figures["list_ms"] = _milliseconds(lambda: [app.list(status=one, limit=100) for one in (None, "confirmed", "outcome_unknown")]) / 3
    figures["status_ms"] = _milliseconds(lambda: _counts(app))
    for _ in range(20):
        effect.submit(an_effect(0))
    figures["submit"] = rate(each_for(1.5, lambda number: effect.submit(an_effect(number))))
    from settled.steps.recover import Examiner

    sweeper = Sweeper(
        shell=app.shell, examiner=Examiner(app.shell), me=1, ask=lambda asking: None, probe_room=lambda: 8, **_extra(Sweeper, Settings())
    )
    for name in ("leases", "reconcile"):
        figures[f"{name}_ms"] = _milliseconds(lambda name=name: sweeper.run(name))  # type: ignore[misc]
    app.submit_many([(effect, an_effect(number)) for number in range(EFFECTS)])
    app.close()
    return figures | _worker(folder)


def _extra(sweeper: type, settings: Any) -> dict[str, Any]:
    """Return what else a sweeper wants to be made with, by its name in the settings."""
    import inspect

    known = {"settings": settings, "escalation": None}
    return {name: value for name, value in known.items() if name in inspect.signature(sweeper).parameters}


def _counts(app: Any) -> None:
    from settled.store.reads import counts

    with app.ledger.read() as transaction:
        counts(transaction)


def _milliseconds(call: Callable[[], object]) -> float:
    took = []
    for _ in range(7):
        began = time.perf_counter()
        call()
        took.append(1_000 * (time.perf_counter() - began))
    return statistics.median(took[1:])


def _worker(folder: Path) -> dict[str, float]:
    """Let a worker take what waits; from its start to the first handler, and from there to the last outcome."""
    from tests.bench.floor import ask

    ledger, done = folder / "settled.db", "SELECT coalesce(sum(count), 0) FROM tally WHERE status = 'confirmed'"
    due = "SELECT count(*) FROM operation WHERE status = 'prepared' AND reason IS NULL AND contract = 'thread' AND due_us < "
    before, waiting = ask(ledger, done), ask(ledger, due + str(time.time_ns() // 1000))
    first = folder / FIRST_STARTED
    first.unlink()  # the handlers that filled the ledger left it
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.bench.roles", "settled", "work", str(folder), json.dumps({"kind": "thread", "slots": 32})]
    with (folder / "log").open("wb") as log:
        worker = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log)
    try:
        wait_until(lambda: first.exists() or worker.poll() is not None, 60.0, "the first handler")
        started = int(first.read_text()) / 1e9
        wait_until(lambda: ask(ledger, done) - before >= waiting, 120.0, "all outcomes")  # of the tally: to count rows takes a core
        return {"e2e": waiting / (time.monotonic() - started), "first_claim_s": started - began, "peak_mb": peak_megabytes(worker.pid)}
    finally:
        stop(worker)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tmp", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(of(options.tmp, json.loads(options.one))), flush=True)
        os._exit(0)
    rounds: list[dict[str, int]] = [{}]
    for rows in options.rows:
        rounds += [{"settled": rows}, {"settled": rows, "prepared": rows, "unknown": rows}, {}]
    results = []
    for counts in rounds:
        with tempfile.TemporaryDirectory(prefix="scale-", dir=options.tmp) as folder:
            command = [sys.executable, "-m", "tests.bench.scale", "--tmp", folder, "--one", json.dumps(counts)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=PROJECT)
        figures = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.returncode}
        results.append({"holds": counts, **figures})
        print(json.dumps(results[-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
