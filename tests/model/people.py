"""People: they tell the truth, and may decide late on what they saw early."""

from collections.abc import Iterator

from settled.core.words import Status
from tests.model.base import Base
from tests.model.state import State, Step


class People(Base):
    """What a person may decide next."""

    def _person(self, state: State) -> Iterator[Step]:
        """A person tells the truth: what was seen, after everything that is still allowed to arrive has had its time."""
        row = self.ledger.row(state.ledger)
        if row.status is Status.PREPARED:
            done = self.ledger.decide(state.ledger, "cancel")
            if done is not None:
                yield "a person cancels", "person", self._moved(state, done.state)
        if row.status not in (Status.OUTCOME_UNKNOWN, Status.QUARANTINED):
            if state.looked is not None:
                yield "a person loses interest", "person", state._replace(looked=None)
            return
        if self._effects(state):
            done = self.ledger.decide(state.ledger, "confirm")
            if done is not None:
                yield "a person confirms", "person", self._moved(state, done.state)
        for verb in ("reject", "authorize_retry"):
            yield from self._denials(state, verb)
        if state.looked is not None:
            stale, verb = state.looked.startswith("stale"), state.looked.removeprefix("stale ")
            done = self.ledger.decide(state.ledger, verb, stale=stale)
            after = state if done is None else self._moved(state, done.state)
            yield f"the other person decides by what was seen then: {verb}", "person", after._replace(looked=None)

    def _denials(self, state: State, verb: str) -> Iterator[Step]:
        """Say that it did not happen: as an assertion where nothing can arrive, or by what is seen where the core allows it."""
        asserted = None if self._effects(state) or self._may_arrive(state) else self.ledger.decide(state.ledger, verb, asserts=True)
        if asserted is not None:
            yield f"a person asserts that nothing can arrive: {verb}", "person", self._moved(state, asserted.state)
        done = None if self._is_seen(state) else self.ledger.decide(state.ledger, verb)
        if done is None:
            return
        yield f"a person sees nothing and decides: {verb}", "person", self._moved(state, done.state)
        if self.setting.two_people and state.looked is None:
            yield f"another person sees nothing and thinks about it: {verb}", "person", state._replace(looked=verb)

    def _is_seen(self, state: State) -> bool:
        return any(one.provider == "committed" and one.shown_age > self.setting.lag for one in state.attempts)

    def _may_arrive(self, state: State) -> bool:
        return any(one.code != "ended" or one.bytes_age is not None or one.provider == "deciding" for one in state.attempts)
