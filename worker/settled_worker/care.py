"""Look after the worker itself: whether all of it lives, and how it stands in the eyes of its service manager."""

from typing import Final

from settled.clock import Clock
from settled.core.errors import LedgerUnavailableError
from settled.core.moment import SECOND_US
from settled.core.words import Status
from settled.logs import get_log
from settled.store.ledger import Ledger
from settled.store.pauses import read_paused
from settled.store.reads import counts
from settled_worker.schedule import RunLog, Schedule
from settled_worker.standing import Standing
from settled_worker.vitals import Vitals

log = get_log("settled.worker")
LOOK_SECONDS: Final = 1.0  # between two looks, and so the longest sleep of the loop
_SHOWN: Final = {
    Status.PREPARED: "waiting",
    Status.OUTCOME_UNKNOWN: "unknown",
    Status.QUARANTINED: "in quarantine",
    Status.CONFIRMED: "confirmed",
}


class Care:
    """One worker's looks at itself. `ailment` names what is wrong beyond mending, None while all is well."""

    def __init__(self, standing: Standing, ledger: Ledger, clock: Clock, runs: RunLog, schedule: Schedule, *, paused: bool) -> None:
        self._standing, self._ledger, self._clock, self._schedule = standing, ledger, clock, schedule
        self._vitals, self._paused = Vitals(runs), paused
        self._vitals.watch_threads()
        self._looked_us = -(10**18)
        self._trouble: str | None = "starting"
        self.ailment: str | None = None

    def ticked(self, trouble: str | None = None) -> None:
        """Note how a tick went: well, or with `trouble` that may pass."""
        self._trouble = trouble

    @property
    def trouble(self) -> str | None:
        """What was wrong with the last tick and may pass."""
        return self._trouble

    def look(self, running: int, hung_seconds: float) -> None:
        """Judge, ping and show, as often as it is worth it. Called from the loop that claims and renews, and from nowhere else."""
        if self._trouble is None and not self._standing.is_ready:
            self._standing.ready(self.summary(running))
            log.info("worker.ready")
        now_us = self._clock.monotonic_us()
        if now_us < self._looked_us + LOOK_SECONDS * SECOND_US:
            return
        self._looked_us = now_us
        self.ailment = self._vitals.ailment(now_us, hung_seconds, scheduler_alive=self._schedule.alive)
        if self.ailment is not None:
            self._standing.unwell(self.ailment)
            log.critical("worker.unwell", why=self.ailment, then="it claims no more, and ends itself")
            return
        self._standing.alive()
        if self._standing.wants_status():
            self._standing.show(self.summary(running))

    def stay(self, running: int) -> None:
        """Ask the manager for the time that ending in good order takes, and keep its watchdog quiet meanwhile."""
        self._standing.draining(running)
        self._standing.alive()

    def close(self) -> None:
        """Look no more."""
        self._vitals.close()

    def summary(self, running: int) -> str:
        """Return how many run, wait and are unknown, for people who look at the service."""
        if self._trouble is not None:
            return self._trouble
        try:
            with self._ledger.read() as transaction:
                found, paused = counts(transaction), read_paused(transaction)
        except LedgerUnavailableError as error:
            return f"the store cannot be read: {error}"
        by_status = {one: sum(of.get(one.value, 0) for of in found.values()) for one in _SHOWN}
        said = ", ".join([f"{running} running", *(f"{by_status[one]} {name}" for one, name in _SHOWN.items())])
        if self._ledger.misplaced:
            return f"a copy of a ledger, nothing is dispatched (see: settled db adopt); {said}"
        if self._paused or paused.everything:
            return f"paused, nothing is dispatched; {said}"
        return f"partly paused (see: settled status); {said}" if paused else said
