"""Run one sweep once, in this process, for a person or a timer. What it did is remembered like a worker's run."""

from collections.abc import Callable, Sequence

from settled.app import App
from settled.config import Settings
from settled.core.errors import LedgerStateError, OperationInProgressError
from settled.presence import Presence
from settled.steps.derive import derive_waiting
from settled.steps.escalate import Escalated
from settled.steps.reconcile import Asking
from settled.steps.recover import Examiner
from settled.steps.retain import FOR_EVER, Retention
from settled.store import sweep_runs, waiting
from settled.store.sweep_runs import SweepRun
from settled_worker.escalation import escalation_of
from settled_worker.sweeps import Sweeper, Swept
from settled_worker.terms import retention_of

NOBODY = 0  # the key of no incarnation: a person who sweeps owns no row


def run_sweep(app: App, name: str, settings: Settings) -> SweepRun:
    """Run a sweep and record the run. Probes are asked one after the other; what is to be told is told before this returns."""
    started_us = app.shell.clock.now().wall_us
    runs = {"reconcile": lambda: _reconcile(app), "escalate": lambda: _escalate(app, settings)}
    swept = runs.get(name, lambda: _sweeper(app, retain=retention_of(settings)).run(name))()
    ended_us = app.shell.clock.now().wall_us
    with app.ledger.write() as transaction:
        sweep_runs.record_run(transaction, name, started_us, ended_us, *swept, "by hand")
    return SweepRun(0, name, started_us, ended_us, *swept, "by hand")


def _sweeper(app: App, *, retain: Retention = FOR_EVER, tell: Callable[[], Escalated] = lambda: Escalated(0, 0)) -> Sweeper:
    return Sweeper(
        shell=app.shell,
        examiner=Examiner(app.shell),
        me=NOBODY,
        ask=_ask_nobody,
        probe_room=lambda: 0,
        retain=lambda: retain,
        tell=tell,
    )


def _escalate(app: App, settings: Settings) -> Swept:
    """Drive the ladders and try what is due once. Whoever has a notification in hand is present, so that its death can be proved."""
    presence = Presence(app.shell, kind="sweep", contracts=(), slots=1)
    try:
        telling = escalation_of(app, settings, presence.id)
        swept = _sweeper(app, tell=telling.tick).run("escalate")
        telling.flush()
        return swept
    finally:
        presence.close()


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
