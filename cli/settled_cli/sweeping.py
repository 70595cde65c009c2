"""Run one sweep once, in this process, for a person or a timer. What it did is remembered like a worker's run."""

from collections.abc import Sequence

from settled.app import App
from settled.core.errors import LedgerStateError, OperationInProgressError
from settled.steps.derive import derive_waiting
from settled.steps.reconcile import Asking
from settled.steps.recover import Examiner
from settled.steps.retain import FOR_EVER, Retention
from settled.store import sweep_runs, waiting
from settled.store.sweep_runs import SweepRun
from settled_worker.sweeps import Sweeper, Swept

NOBODY = 0  # the key of no incarnation: a person who sweeps owns no row


def run_sweep(app: App, name: str, retain: Retention = FOR_EVER) -> SweepRun:
    """Run a sweep and record the run. Probes are asked one after the other. `retain` says what retention may remove."""
    started_us = app.shell.clock.now().wall_us
    swept = _reconcile(app) if name == "reconcile" else _sweeper(app, retain).run(name)
    ended_us = app.shell.clock.now().wall_us
    with app.ledger.write() as transaction:
        sweep_runs.record_run(transaction, name, started_us, ended_us, *swept, "by hand")
    return SweepRun(0, name, started_us, ended_us, *swept, "by hand")


def _sweeper(app: App, retain: Retention) -> Sweeper:
    return Sweeper(shell=app.shell, examiner=Examiner(app.shell), me=NOBODY, ask=_ask_nobody, probe_room=lambda: 0, retain=lambda: retain)


def _ask_nobody(asking: Sequence[Asking]) -> None:
    """Start no probe: there is no room for any, so none is ever held."""
    assert not asking


def _reconcile(app: App) -> Swept:
    """Ask the probe of each row that is due, a batch at most; an operation that is being handled is left alone."""
    derived = derive_waiting(app.shell)
    now_us = app.shell.clock.now().wall_us
    with app.ledger.read() as transaction:
        rows = waiting.find_probe_due(transaction, tuple(app.contracts), now_us, app.shell.limits.batch_max)
    moved = errors = 0
    for row in rows:
        try:
            moved += app.reconcile(row.operation_id).version != row.version
        except OperationInProgressError:
            continue
        except LedgerStateError:
            errors += 1
    return Swept(len(rows) + derived, moved + derived, errors)
