"""The world outside: handlers, bytes under way, the provider, and time, within the bounds of the setting."""

from collections.abc import Iterator

from settled.core.decide_end import End
from tests.model.base import Base
from tests.model.state import Attempt, State, Step


class Outside(Base):
    """What may happen next outside of our processes' control."""

    def _handler(self, state: State, number: int, attempt: Attempt) -> Iterator[Step]:
        if attempt.code == "ended" or not self._can_run(attempt):
            return

        if attempt.code == "queued":
            yield self._entry(state, number, attempt)
        elif attempt.code == "sent":
            yield from self._answers(state, number, attempt)
        else:
            yield from self._before_sending(state, number, attempt)

    def _entry(self, state: State, number: int, attempt: Attempt) -> Step:
        if attempt.slot == "claimed" and (attempt.enter_by is None or attempt.enter_by >= 0):
            entered = attempt._replace(code="entered", slot="entered", ran=0)
            return f"attempt {number} is entered", "system", self._with(state, number, entered)
        return f"attempt {number} may not be entered any more", "system", self._ended(state, number, End.NEVER_ENTERED)

    def _before_sending(self, state: State, number: int, attempt: Attempt) -> Iterator[Step]:
        sent = self._with(state, number, attempt._replace(code="sent", bytes_age=0))
        if attempt.code == "announced":
            yield f"attempt {number} sends", "world", sent
            return
        yield f"attempt {number} ends before it sends", "world", self._ended(state, number, End.RAISED)
        yield f"attempt {number} knows that it sent nothing", "world", self._ended(state, number, End.NOT_SENT)
        if not self.setting.announces:
            yield f"attempt {number} sends", "world", sent
        elif attempt.slot == "entered":
            announced = attempt._replace(code="announced", slot="sending")
            yield f"attempt {number} announces its sending", "world", self._with(state, number, announced)
        else:
            yield f"attempt {number} finds its entry revoked", "system", self._ended(state, number, End.NOT_SENT)

    def _answers(self, state: State, number: int, attempt: Attempt) -> Iterator[Step]:
        yield f"attempt {number} loses the answer", "world", self._ended(state, number, End.RAISED)
        if attempt.provider == "committed" or (attempt.provider == "repeated" and self._effects(state)):
            yield f"attempt {number} returns", "world", self._ended(state, number, End.RETURNED)
        if attempt.provider == "refused":
            yield f"attempt {number} is refused", "world", self._ended(state, number, End.REJECTED)

    def _ended(self, state: State, number: int, end: End) -> State:
        """The local code ends. What a runner says to a worker that has ended is heard by nobody."""
        attempt = state.attempts[number - 1]
        return self._with(state, number, attempt._replace(code="ended", report=None if attempt.owner == "gone" else end))

    def _can_run(self, attempt: Attempt) -> bool:
        """A thread runs where its worker runs; a runner goes on without its worker, until its own timer ends it."""
        return self.process or attempt.owner == "up"

    # ------------------------------------------------------------------ the provider

    def _provider(self, state: State, number: int, attempt: Attempt) -> Iterator[Step]:
        def becomes(what: str, **changes: object) -> Step:
            return f"{what} (attempt {number})", "system", self._with(state, number, attempt._replace(**changes))  # type: ignore[arg-type]

        if attempt.bytes_age is not None:
            yield becomes("the bytes are lost", bytes_age=None)
            if self._is_known_key(state, number):
                yield becomes("the provider knows the key", bytes_age=None, provider="repeated")
            else:
                yield becomes("the provider gets the bytes", bytes_age=None, provider="deciding", deciding=0)
        if attempt.provider == "deciding":
            yield becomes("the provider commits", provider="committed", shown_age=0, deciding=0)
            if self.setting.rejects:
                yield becomes("the provider refuses", provider="refused", deciding=0)

    def _is_known_key(self, state: State, number: int) -> bool:
        """Inside the window, counted from the first dispatch, the provider does one effect for a key."""
        if state.key_age is None or (self.setting.window is not None and state.key_age > self.setting.window):
            return False
        return any(one.provider in ("deciding", "committed") for one in state.attempts)

    # ------------------------------------------------------------------ time

    def _time(self, state: State) -> Iterator[Step]:
        """Let a tick pass, unless something must happen before it. A runner's own timer ends it, with or without its worker."""
        setting = self.setting
        for number, one in enumerate(state.attempts, 1):
            if self.process and one.code in ("entered", "announced", "sent") and one.ran >= setting.timeout:
                if one.owner != "up":
                    yield f"the own timer of attempt {number} ends it", "system", self._with(state, number, one._replace(code="ended"))
                return
            arrives = one.bytes_age is not None and one.bytes_age >= setting.drain
            if arrives or (one.provider == "deciding" and one.deciding >= setting.commit):
                return
        attempts = tuple(self._older(one) for one in state.attempts)
        probe = None if state.probe is None else state.probe._replace(age=min(state.probe.age + 1, setting.horizon))
        age = None if state.key_age is None else min(state.key_age + 1, (setting.window or 0) + 1)
        yield "time passes", "system", state._replace(ledger=self.ledger.tick(state.ledger), attempts=attempts, probe=probe, key_age=age)

    def _older(self, one: Attempt) -> Attempt:
        running = one.code in ("entered", "announced", "sent")
        return one._replace(
            ran=min(one.ran + 1, self.setting.timeout) if running else 0,
            enter_by=None if one.enter_by is None or one.code != "queued" else max(one.enter_by - 1, -1),
            bytes_age=None if one.bytes_age is None else one.bytes_age + 1,
            deciding=one.deciding + 1 if one.provider == "deciding" else 0,
            shown_age=min(one.shown_age + 1, self.setting.lag + 1) if one.provider == "committed" else 0,
        )
