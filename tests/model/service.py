"""The service: workers that claim, record and give up; sweeps that take over and find fences; probes that ask."""

from collections.abc import Iterator

from settled.core.decide_end import End, EndFacts
from settled.core.evidence import ProbeResult
from settled.core.moment import Moment
from settled.core.words import FenceBasis, Status
from tests.model.base import Base
from tests.model.ledger import Violation, absent, committed
from tests.model.state import Attempt, Probe, State, Step


class Service(Base):
    """What our own processes may do next."""

    def _workers(self, state: State) -> Iterator[Step]:
        row = self.ledger.row(state.ledger)
        if row.status is Status.PREPARED and row.reason is None and len(state.attempts) < self.setting.dispatches:
            yield from self._claim(state)
        for number, attempt in enumerate(state.attempts, 1):
            if attempt.owner == "up" and attempt.report is not None:
                yield self._record(state, number, attempt)
            if attempt.owner == "up" and self._is_overdue(attempt) and attempt.report is None:
                yield self._time_out(state, number, attempt)

    def _claim(self, state: State) -> Iterator[Step]:
        done = self.ledger.claim(state.ledger)
        if not done.moved:
            return
        after = self._moved(state, done.state)
        if done.dispatches:
            number = len(state.attempts) + 1
            if self.ledger.row(done.state).attempt != number:
                raise Violation(f"I5: attempt {self.ledger.row(done.state).attempt} follows {number - 1}")
            new = Attempt(enter_by=None if done.enter_by is None else min(done.enter_by, self.setting.horizon))
            age = state.key_age if state.key_age is not None else (0 if self.setting.key else None)
            after = after._replace(attempts=(*state.attempts, new), key_age=age)
        yield "a worker claims", "system", after

    def _record(self, state: State, number: int, attempt: Attempt) -> Step:
        """Record an end by its owner: as the attempt's end where the row is still its own, else as late evidence."""
        assert attempt.report is not None
        ended = attempt._replace(report=None, late=True, slot="lost")
        facts = self._facts(attempt.report)
        mine = self._is_mine(state, number)
        done = self.ledger.end(state.ledger, facts) if mine else self.ledger.late(state.ledger, number, facts)
        return f"{attempt.report} of attempt {number} is recorded", "system", self._with(self._moved(state, done.state), number, ended)

    def _facts(self, end: End) -> EndFacts:
        """In a process the runner is killed after anything but an answer; elsewhere the code is seen to have ended."""
        fence = {
            End.RETURNED: FenceBasis.RETURNED, End.NEVER_ENTERED: FenceBasis.NEVER_ENTERED,
            End.REJECTED: FenceBasis.RETURNED if self.process else FenceBasis.RAISED,
            End.NOT_SENT: FenceBasis.RETURNED if self.process else FenceBasis.RAISED,
        }.get(end, FenceBasis.PROCESS_KILLED if self.process else FenceBasis.RAISED)  # fmt: skip
        return EndFacts(end=end, fence=fence, retryable=False)

    def _is_mine(self, state: State, number: int) -> bool:
        row = self.ledger.row(state.ledger)
        return row.status is Status.DISPATCHED and row.attempt == number

    def _is_overdue(self, attempt: Attempt) -> bool:
        return attempt.code in ("entered", "announced", "sent") and attempt.ran >= self.setting.timeout and not attempt.late

    def _time_out(self, state: State, number: int, attempt: Attempt) -> Step:
        """A process is killed and reaped first; a thread or a coroutine goes on, and the ledger gives it up without a fence."""
        if self.process:
            return f"attempt {number} is killed at its deadline", "system", self._with(
                state, number, attempt._replace(code="ended", report=End.TIMED_OUT)
            )
        after = state
        if self._is_mine(state, number):
            after = self._moved(state, self.ledger.end(state.ledger, EndFacts(end=End.TIMED_OUT)).state)
        return f"attempt {number} is given up at its deadline", "system", self._with(after, number, attempt._replace(late=True))

    # ------------------------------------------------------------------ sweeps

    def _sweeps(self, state: State) -> Iterator[Step]:
        row = self.ledger.row(state.ledger)
        history = self.ledger.history(state.ledger)
        if row.status is Status.DISPATCHED and row.attempt <= len(state.attempts):
            attempt = state.attempts[row.attempt - 1]
            if attempt.rebooted or attempt.owner != "up":
                yield self._take_over(state, row.attempt, attempt)
        for known in history.open_attempts:
            if known.fence is not None or known.restored or (row.status is Status.DISPATCHED and known.number == row.attempt):
                continue
            attempt = state.attempts[known.number - 1]
            if attempt.rebooted or (attempt.owner == "gone" and attempt.code == "ended"):
                basis = FenceBasis.HOST_REBOOTED if attempt.rebooted else FenceBasis.PROCESS_GONE
                done = self.ledger.fence(state.ledger, known.number, basis)
                if done.moved:
                    yield f"a sweep finds that attempt {known.number} is gone", "system", self._moved(state, done.state)
        if row.status is Status.OUTCOME_UNKNOWN and row.reason is None:
            done = self.ledger.unattended(state.ledger)
            if done.moved and not self.setting.probe:
                yield "a sweep decides without a probe", "system", self._moved(state, done.state)
        if row.status is Status.OUTCOME_UNKNOWN and row.escalate_us is not None:
            yield "a sweep escalates", "system", self._moved(state, self.ledger.escalate(state.ledger).state)

    def _take_over(self, state: State, number: int, attempt: Attempt) -> Step:
        """Examine a dispatch whose owner is dead or hung; entry and sending are contested, never only read."""
        announces = self.setting.announces
        fence = None
        if attempt.rebooted:
            fence = FenceBasis.HOST_REBOOTED
        elif attempt.owner == "gone" and attempt.code == "ended":
            fence = FenceBasis.PROCESS_GONE
        if attempt.slot == "claimed" and not attempt.rebooted:
            facts = EndFacts(end=End.NEVER_ENTERED, fence=FenceBasis.NEVER_ENTERED)
            attempt = attempt._replace(slot="revoked")
        elif attempt.slot == "entered" and announces and not attempt.rebooted:
            facts = EndFacts(end=End.NOT_SENT, fence=fence)
            attempt = attempt._replace(slot="revoked")
        else:
            facts = EndFacts(end=End.LEASE_LOST, fence=fence, fenced=self._boot(state) if attempt.rebooted else None)
        done = self.ledger.end(state.ledger, facts)
        return f"a sweep takes attempt {number} over ({facts.end})", "system", self._with(
            self._moved(state, done.state), number, attempt._replace(late=True)
        )

    def _boot(self, state: State) -> Moment:
        case = self.ledger.cases[state.ledger]
        return case.now._replace(boot_us=0)

    # ------------------------------------------------------------------ the probe

    def _probe(self, state: State) -> Iterator[Step]:
        row = self.ledger.row(state.ledger)
        if not self.setting.probe:
            return
        if state.probe is None:
            if row.status in (Status.OUTCOME_UNKNOWN, Status.QUARANTINED):
                yield "a probe starts", "system", state._replace(probe=Probe(0))
            return
        if state.probe.seen == "nothing yet":
            yield from self._read(state, state.probe)
            yield "the probe cannot tell", "system", self._asked(state, None)
            yield "the probe sees somebody else's", "world", self._asked(state, committed(bound=False))
        else:
            result = committed(bound=True) if state.probe.seen == "committed" else absent()
            yield f"the probe's answer is recorded ({state.probe.seen})", "system", self._asked(state, result)

    def _read(self, state: State, probe: Probe) -> Iterator[Step]:
        """Read what the provider shows: a commit is hidden for a while, perhaps."""
        ages = [one.shown_age for one in state.attempts if one.provider == "committed"]
        if ages:
            yield "the probe sees the effect", "world", state._replace(probe=probe._replace(seen="committed"))
        if not ages or max(ages) <= self.setting.lag:
            yield "the probe sees nothing", "world", state._replace(probe=probe._replace(seen="absent"))

    def _asked(self, state: State, result: ProbeResult | None) -> State:
        assert state.probe is not None
        answer = ProbeResult.unknown() if result is None else result
        return self._moved(state, self.ledger.answer(state.ledger, answer, state.probe.age).state)._replace(probe=None)
