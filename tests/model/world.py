"""Everything around the ledger: workers, their handlers, the bytes under way, the provider, a probe, people, and time.

`World.steps` lists what may happen next. Each step is atomic, and each may be the last one before a kill. Every dispatch has an owner of
its own, which may hang, wake or die; beside it there is always another worker that claims, sweeps and probes. The world keeps the
bounds of its setting: when something is due "within a tick", time does not go on before it has happened.
"""

from collections.abc import Iterator

from settled.core.history import Attempt as Known
from settled.core.words import SETTLED, Reason, Status
from tests.model.faults import Faults
from tests.model.ledger import Violation
from tests.model.outside import Outside
from tests.model.people import People
from tests.model.service import Service
from tests.model.state import Attempt, Provider, State, Step


class World(Service, Outside, People, Faults):
    """The steps and the invariants of one setting."""

    def first(self) -> State:
        return State(self.ledger.first)

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._workers(state)
        for number, attempt in enumerate(state.attempts, 1):
            yield from self._handler(state, number, attempt)
            yield from self._provider(state, number, attempt)
        yield from self._sweeps(state)
        yield from self._probe(state)
        yield from self._person(state)
        yield from self._faults(state)
        yield from self._time(state)

    def plain(self, state: State) -> State:
        """Forget what nobody can ask for any more, so that states which differ in nothing else are one."""
        known = {one.number: one for one in self.ledger.history(state.ledger).attempts}
        attempts = tuple(self._plain(one, known.get(number)) for number, one in enumerate(state.attempts, 1))
        return state if attempts == state.attempts else state._replace(attempts=attempts)

    def _plain(self, one: Attempt, known: Known | None) -> Attempt:
        if one.code != "ended" or one.report is not None:
            return one
        if known is None or known.end is not None or known.restored:
            one = one._replace(slot="lost")
            if known is None or not known.open or known.fence is not None:
                one = one._replace(owner="gone", rebooted=False)
        provider: Provider = "nothing" if one.provider in ("refused", "repeated") else one.provider
        return one._replace(ran=0, enter_by=None, late=True, provider=provider)

    def check(self, state: State) -> None:
        """Raise Violation where the world and the ledger disagree."""
        row = self.ledger.row(state.ledger)
        effects = sum(one.provider == "committed" for one in state.attempts)
        if effects > 1:
            raise Violation("I1: two effects")
        if row.status is Status.CONFIRMED and not effects:
            raise Violation("I2: CONFIRMED without an effect")
        if row.status in (Status.REJECTED, Status.CANCELLED) and effects:
            raise Violation(f"I3: FAILED ({row.status}) with an effect")
        confirmed = bool(self.ledger.history(state.ledger).confirmations)
        if row.status is Status.QUARANTINED and row.reason != Reason.CONFLICTING_EVIDENCE and confirmed:
            raise Violation("I3: quarantined although a kept observation confirms")

    def is_over(self, state: State) -> bool:
        """Whether nothing is left to be done, or the search ends here by its own bound."""
        return self.is_settled(state) or self.is_bound(state)

    def is_settled(self, state: State) -> bool:
        return self.ledger.row(state.ledger).status in SETTLED

    def waits_for_a_person(self, state: State) -> bool:
        row = self.ledger.row(state.ledger)
        return row.status is Status.QUARANTINED or row.reason is not None

    def is_bound(self, state: State) -> bool:
        row = self.ledger.row(state.ledger)
        return row.status is Status.PREPARED and len(state.attempts) >= self.setting.dispatches
