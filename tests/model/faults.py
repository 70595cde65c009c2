"""Faults: kills, hangs, power cuts, a wall clock that steps, a ledger restored from a copy."""

from collections.abc import Iterator

from settled.core.decide_end import End
from settled.core.words import Status
from tests.model.base import Base
from tests.model.state import USED, Attempt, State, Step


class Faults(Base):
    """What may go wrong next."""

    def _faults(self, state: State) -> Iterator[Step]:
        row = self.ledger.row(state.ledger)
        for number, one in enumerate(state.attempts, 1):
            if one.owner == "gone" or (one.code == "ended" and one.report is None):
                continue
            yield f"the worker of attempt {number} is killed", "fault", self._with(state, number, self._orphaned(one))
            if self.process and one.code != "ended":
                killed = one._replace(code="ended", report=End.CRASHED)
                yield f"the runner of attempt {number} is killed", "fault", self._with(state, number, killed)
            if one.owner == "hung":
                yield f"the worker of attempt {number} wakes", "system", self._with(state, number, one._replace(owner="up"))
            elif self.setting.hangs:
                yield f"the worker of attempt {number} hangs", "fault", self._with(state, number, one._replace(owner="hung"))
        if self.setting.power_cuts and any(not one.rebooted for one in state.attempts):
            yield "the power fails", "fault", self._power_cut(state)
        if self.setting.clock_steps:
            for ticks in (-self.setting.horizon, self.setting.horizon):
                yield f"the wall clock steps by {ticks}", "fault", state._replace(ledger=self.ledger.step_clock(state.ledger, ticks))
        if self.setting.restores:
            if state.backup is None and row.status is Status.PREPARED and not row.attempt:
                yield "a copy of the ledger is made", "person", state._replace(backup=state.ledger)
            elif state.backup is not None and state.backup != USED:
                yield "the copy is restored", "person", self._restored(state)

    def _orphaned(self, one: Attempt) -> Attempt:
        """A thread dies with its worker, a runner goes on; what was not recorded is heard by nobody."""
        return one._replace(owner="gone", report=None, code=one.code if self.process else "ended")

    def _power_cut(self, state: State) -> State:
        """All code of the host ends; the recorder is not believed any more; what is under way elsewhere goes on."""
        attempts = tuple(one._replace(owner="gone", code="ended", report=None, slot="lost", rebooted=True) for one in state.attempts)
        return state._replace(ledger=self.ledger.reboot(state.ledger), attempts=attempts, probe=None)

    def _restored(self, state: State) -> State:
        """An older copy takes the ledger's place, after everything of the old place was stopped."""
        assert state.backup is not None
        attempts = tuple(one._replace(owner="gone", code="ended", report=None, slot="lost", late=True) for one in state.attempts)
        done = self.ledger.restore(state.backup, len(state.attempts))
        supposed = Attempt("gone", code="ended", slot="lost", late=True)  # the one that a copy counts for all it cannot know
        padded = attempts if self.ledger.row(done.state).attempt <= len(attempts) else (*attempts, supposed)
        return State(done.state, padded, None, state.key_age, None, USED)
