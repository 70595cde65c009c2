"""Read what status, health and doctor all look at: counts, what waits longest, workers, sweeps.

Promise: no settled row is read, so that a look costs the same however long the history is.
"""

from dataclasses import dataclass
from typing import Final

from settled.app import App
from settled.core.moment import SECOND_US
from settled.core.words import SETTLED, Status
from settled.steps.pausing import Pause, to_pause
from settled.steps.refusing import refused_by
from settled.store import incidents, outbox, sweep_runs
from settled.store.outbox import Undelivered
from settled.store.pauses import active
from settled.store.reads import counts, oldest
from settled.store.sweep_runs import SweepRun
from settled.store.unknowns import oldest_unknown_us
from settled.store.waiting import find_escalating, next_due_us
from settled.store.workers import WorkerRow
from settled_cli.workers import live_workers

UNSETTLED: Final = tuple(status for status in Status if status not in SETTLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The state of a ledger at one moment.

    `oldest_us` is when the longest waiting row of a status was last updated, `due_us` when the first row that waits for a
    worker fell due, `unknown_us` since when the outcome is unknown that has been so for longest, `overdue` an operation that is
    unknown for longer than its contract allows, `refused` the contracts of which a living worker claims no more, because their
    handlers hang, `paused` what people hold back, `restored` that nothing is dispatched because the ledger is a copy,
    `undelivered` what no channel has taken yet, `proposals` how many wait for a second person.
    """

    now_us: int
    by_contract: dict[str, dict[str, int]]
    oldest_us: dict[Status, int]
    due_us: int | None
    unknown_us: int | None
    overdue: str | None
    refused: tuple[str, ...]
    paused: tuple[Pause, ...]
    restored: bool
    incidents_open: int
    undelivered: tuple[Undelivered, ...]
    proposals: int
    workers: list[WorkerRow]
    sweeps: dict[str, SweepRun]

    @property
    def by_status(self) -> dict[str, int]:
        """How many operations there are in each status, every status named."""
        return {status.value: sum(of.get(status.value, 0) for of in self.by_contract.values()) for status in Status}

    @property
    def due_seconds(self) -> float | None:
        """For how long an operation has waited for a worker beyond its time; None where none has."""
        return None if self.due_us is None or self.due_us > self.now_us else (self.now_us - self.due_us) / SECOND_US

    @property
    def unknown_seconds(self) -> float | None:
        """For how long an outcome has been unknown without being in quarantine, however often it was asked for; None where none is."""
        return None if self.unknown_us is None else max(0.0, (self.now_us - self.unknown_us) / SECOND_US)

    def age_seconds(self, status: Status) -> float | None:
        """How long the longest waiting row of a status has not been updated; None where there is none."""
        since = self.oldest_us.get(status)
        return None if since is None else max(0.0, (self.now_us - since) / SECOND_US)


def survey(app: App) -> Survey:
    """Look once."""
    now_us = app.shell.clock.now().wall_us
    alive = live_workers(app)
    with app.ledger.read() as transaction:
        by_contract = counts(transaction)
        due_us = next_due_us(transaction, [name for name, of in by_contract.items() if of.get(Status.PREPARED.value)])
        unknown = [oldest_unknown_us(transaction, name) for name, of in by_contract.items() if of.get(Status.OUTCOME_UNKNOWN.value)]
        overdue = find_escalating(transaction, now_us, 1)
        refused = {name for worker in alive for name in refused_by(transaction, worker.id)}
        paused = tuple(to_pause(one) for one in active(transaction))
        ages = {status: oldest(transaction, status) for status in UNSETTLED}
        sweeps = sweep_runs.last_runs(transaction)
        incidents_open, undelivered = incidents.count_open(transaction), tuple(outbox.undelivered(transaction))
    return Survey(
        now_us=now_us,
        by_contract=by_contract,
        oldest_us={status: since for status, since in ages.items() if since is not None},
        due_us=due_us,
        unknown_us=min((since for since in unknown if since is not None), default=None),
        overdue=overdue[0].operation_id if overdue else None,
        refused=tuple(sorted(refused)),
        paused=paused,
        restored=bool(app.ledger.misplaced),
        incidents_open=incidents_open,
        undelivered=undelivered,
        proposals=len(app.pending_proposals()),
        workers=alive,
        sweeps=sweeps,
    )
