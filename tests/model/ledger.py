"""One operation as the core sees it, in states that can be compared: every move is a decision of the real core.

Time is relative. A case is always looked at from one fixed "now"; what was stored lies so many ticks before it, at most
`Setting.horizon`, beyond which nothing that the core compares can change any more. So time itself is unbounded.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from settled.core.case import Case
from settled.core.decide_claim import decide_claim
from settled.core.decide_end import EndFacts, decide_end
from settled.core.decide_evidence import Answer, decide_after_probe, decide_fence
from settled.core.decide_late import decide_late
from settled.core.decide_operator import Decision, decide_authorize_retry, decide_cancel, decide_confirm, decide_reject
from settled.core.decide_restore import decide_restored
from settled.core.decide_unknown import decide_escalation, decide_unattended
from settled.core.errors import TransitionRefusedError
from settled.core.evidence import ProbeResult
from settled.core.fold import Event
from settled.core.history import Attempt, History, Observation
from settled.core.moment import SECOND_US, Moment
from settled.core.row import Row
from settled.core.words import ClosedBy, EventType, FenceBasis, Status
from tests.lib.core.builders import REFERENCE, START_US, prepared_row
from tests.model.setting import Setting

TICK: Final = SECOND_US
BOOT, EARLIER_BOOT = "this boot", "an earlier boot"
_REMEMBERED: Final = (EventType.AWAITING_PROBE, EventType.POSTCONDITION_FAILED, EventType.RESULT_NOT_STORABLE, EventType.RETURNED)
_UNSENT: Final = (ClosedBy.NEVER_ENTERED, ClosedBy.NOT_SENT)
_SPEAKS: Final = (EventType.RETURNED, EventType.PROBE_COMMITTED, EventType.LATE_RETURN, EventType.OPERATOR_CONFIRMED)


class Violation(Exception):
    """A rule of the protocol was broken; the text begins with the rule."""


class Moved(NamedTuple):
    """What a decision came to: the state after it, and what the shell is told."""

    state: int
    moved: bool
    dispatches: bool = False
    enter_by: int | None = None


class Ledger:
    """The states met so far, by number, and what each decision made of them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.cases: list[Case] = []
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Hashable, Moved | None] = {}
        now = Moment(START_US, setting.horizon * TICK, BOOT)
        self.first = self._number(
            Case(row=prepared_row(), now=now, current=setting.terms, stored={1: setting.terms}, wall_highest_us=START_US)
        )

    def row(self, state: int) -> Row:
        return self.cases[state].row

    def history(self, state: int) -> History:
        return self.cases[state].history

    # ------------------------------------------------------------------ time

    def tick(self, state: int) -> int:
        return self._memo(state, ("tick",), lambda case: Moved(self._number(self._later(case)), True)).state

    def reboot(self, state: int) -> int:
        return self._memo(state, ("reboot",), lambda case: Moved(self._number(self._rebooted(case)), True)).state

    def step_clock(self, state: int, ticks: int) -> int:
        """Set the wall clock, which must change nothing that is decided."""

        def stepped(case: Case) -> Case:
            wall = case.now.wall_us + ticks * TICK
            return replace(case, now=case.now._replace(wall_us=wall), wall_highest_us=max(wall, case.wall_highest_us))

        return self._memo(state, ("clock", ticks), lambda case: Moved(self._number(stepped(case)), True)).state

    def _later(self, case: Case) -> Case:
        now = Moment(case.now.wall_us + TICK, case.now.boot_us + TICK, BOOT)
        return replace(case, now=now, wall_highest_us=max(case.wall_highest_us, now.wall_us))

    def _rebooted(self, case: Case) -> Case:
        def before(moment: Moment | None) -> Moment | None:
            return None if moment is None else moment._replace(boot_id=EARLIER_BOOT)

        attempts = tuple(
            one._replace(dispatched=before(one.dispatched) or one.dispatched, ended=before(one.ended), fenced=before(one.fenced))
            for one in case.history.attempts
        )
        return replace(case, now=case.now._replace(boot_us=0), history=case.history._replace(attempts=attempts))

    # ------------------------------------------------------------------ decisions

    def claim(self, state: int, *, held: bool = False) -> Moved:
        def decided(case: Case) -> Moved:
            claim = decide_claim(case, 1, 1, held=held)
            left = None if claim.enter_by_boot_us is None else (claim.enter_by_boot_us - case.now.boot_us) // TICK
            return self._after(case, claim.events)._replace(dispatches=claim.dispatches, enter_by=left)

        return self._memo(state, ("claim", held), decided)

    def end(self, state: int, facts: EndFacts) -> Moved:
        return self._memo(state, ("end", _told(facts)), lambda case: self._after(case, decide_end(case, facts)))

    def late(self, state: int, number: int, facts: EndFacts) -> Moved:
        return self._memo(state, ("late", number, _told(facts)), lambda case: self._after(case, decide_late(case, number, facts)))

    def fence(self, state: int, number: int, basis: FenceBasis) -> Moved:
        def decided(case: Case) -> Moved:
            return self._after(case, decide_fence(case, number, basis, fenced_at(case, basis)))

        return self._memo(state, ("fence", number, basis), decided)

    def answer(self, state: int, result: ProbeResult, started: int) -> Moved:
        """Record a probe's answer; the probe started `started` ticks ago."""

        def decided(case: Case) -> Moved:
            begun = Moment(case.now.wall_us - started * TICK, case.now.boot_us - started * TICK, BOOT)
            return self._after(case, decide_after_probe(case, Answer(result, begun)))

        return self._memo(state, ("answer", result.status, result.reference, started), decided)

    def unattended(self, state: int) -> Moved:
        return self._memo(state, ("unattended",), lambda case: self._after(case, decide_unattended(case)))

    def escalate(self, state: int) -> Moved:
        return self._memo(state, ("escalate",), lambda case: self._after(case, decide_escalation(case)))

    def restore(self, state: int, attempts_known: int) -> Moved:
        return self._memo(
            state,
            ("restore", attempts_known),
            lambda case: self._after(case, decide_restored(case, "copied", "ana", "os:ana", attempts_known)),
        )

    def decide(self, state: int, verb: str, *, asserts: bool = False, stale: bool = False) -> Moved | None:
        """Let a person decide; None where the core refuses. `stale`: the version that the person saw is no longer the row's."""
        return self._memo_or_none(state, (verb, asserts, stale), lambda case: self._person(case, verb, asserts, stale))

    def _person(self, case: Case, verb: str, asserts: bool, stale: bool) -> Moved | None:
        seen = case.row.version - 1 if stale else case.row.version
        said = Decision(actor="ana", reason="looked", evidence_reference="INC-7", expected_version=seen)
        try:
            match verb:
                case "confirm":
                    events = decide_confirm(case, said, output_digest=None, provider_operation_id=None)
                case "reject":
                    events = decide_reject(case, said, nothing_can_arrive=asserts)
                case "authorize_retry":
                    events = decide_authorize_retry(case, said, nothing_can_arrive=asserts, accept_second_effect=False)
                case _:
                    events = decide_cancel(case, "ana", "not wanted", "root")
        except TransitionRefusedError:
            return None
        return self._after(case, events)

    # ------------------------------------------------------------------ states

    def _memo(self, state: int, action: Hashable, decided: Callable[[Case], Moved]) -> Moved:
        known = self._memo_or_none(state, action, decided)
        assert known is not None
        return known

    def _memo_or_none(self, state: int, action: Hashable, decided: Callable[[Case], Moved | None]) -> Moved | None:
        key = (state, action)
        if key not in self._known:
            try:
                self._known[key] = decided(self.cases[state])
            except TransitionRefusedError as error:
                raise Violation(f"I5: {error}") from None
        return self._known[key]

    def _after(self, case: Case, events: tuple[Event, ...]) -> Moved:
        after = case.after(events)
        self._check(after)
        return Moved(self._number(after), bool(events))

    def _check(self, case: Case) -> None:
        """What must hold of every row by itself: the fold agrees with the history, and nothing lives without an owner or a timer."""
        row, opened = case.row, case.history.open_attempts
        if row.open_attempts != len(opened):
            raise Violation(f"I6: the row counts {row.open_attempts} open attempts, its events {len(opened)}")
        if row.status in (Status.REJECTED, Status.CANCELLED) and opened:
            raise Violation(f"I3: {row.status} while attempt {opened[0].number} is open")
        timer = {
            Status.PREPARED: row.due_us is not None or row.reason is not None,
            Status.DISPATCHED: row.lease_owner is not None,
            Status.OUTCOME_UNKNOWN: row.due_us is not None or row.escalate_us is not None or row.reason is not None,
            Status.QUARANTINED: row.reason is not None,
        }
        if not timer.get(row.status, True):
            raise Violation(f"I4: {row.status} without an owner or a timer")

    def _number(self, case: Case) -> int:
        case = self._canonical(case)
        row, history = case.row, case.history
        key = (case.now.boot_us, case.wall_highest_us, row, history.attempts, tuple(one[:-1] for one in history.observations), history[2:])
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.cases)
            self.cases.append(case)
        return number

    def _canonical(self, case: Case) -> Case:
        """Look from the fixed now, and forget what no decision asks for: versions, sequences, exact due times, repeated answers."""
        horizon = self.setting.horizon * TICK
        boot = min(case.now.boot_us, horizon)

        def seen(moment: Moment | None) -> Moment | None:
            if moment is None:
                return None
            wall = START_US + _within(moment.wall_us - case.now.wall_us, horizon)
            if moment.boot_id != BOOT:
                return Moment(wall, 0, EARLIER_BOOT)
            return Moment(wall, boot + _within(moment.boot_us - case.now.boot_us, horizon), BOOT)

        def noted(attempt: Attempt) -> Attempt:
            dispatched = seen(attempt.dispatched) if self.setting.terms.window_us is not None and attempt.number == 1 else case.now
            ended = None if attempt.ended is None else Moment(START_US, 0, BOOT)
            return attempt._replace(
                dispatched=Moment(START_US, 0, BOOT) if dispatched is case.now or dispatched is None else dispatched,
                ended=ended,
                end=attempt.end if attempt.end is None or attempt.end in _REMEMBERED else EventType.RAISED,
                execution=None,
                fence=FenceBasis.RAISED if attempt.fence is not None and attempt.open else None,
                fenced=seen(attempt.fenced) if attempt.open else None,
                closed_by=_closed(attempt.closed_by),
                error=None,
                interruption=None,
                basis=None,
                retryable=None,
            )

        row = case.row._replace(
            version=2, sequence=1, updated_us=START_US, chain=b"", error=None, output_part=None,
            due_us=None if case.row.due_us is None else START_US,
            unknown_since_us=None if case.row.unknown_since_us is None else START_US,
            escalate_us=None if case.row.escalate_us is None else START_US,
            kept=min(case.row.kept, 1),
            probes_spent=min(case.row.probes_spent, self.setting.probes),  # spent is spent
        )  # fmt: skip
        history = History(
            tuple(noted(one) for one in case.history.attempts), _spoken(case.history.observations), *case.history[2:]
        )
        highest = START_US + _within(case.wall_highest_us - case.now.wall_us, horizon)
        return replace(case, row=row, history=history, now=Moment(START_US, boot, BOOT), wall_highest_us=highest)


def fenced_at(case: Case, basis: FenceBasis) -> Moment:
    """A reboot fences at the boot; everything else when it was found."""
    return Moment(case.now.wall_us, 0, case.now.boot_id) if basis is FenceBasis.HOST_REBOOTED else case.now


def committed(*, bound: bool) -> ProbeResult:
    return ProbeResult.committed(reference=REFERENCE if bound else "another one")


def absent() -> ProbeResult:
    """Every absence is called terminal: how soon that may be believed is the core's business."""
    return ProbeResult.not_committed(healthy=True, terminal=True, reference=REFERENCE)


def _told(facts: EndFacts) -> Hashable:
    return (facts.end, facts.fence, facts.retryable, facts.fenced is not None)


def _closed(by: ClosedBy | None) -> ClosedBy | None:
    """Only what was never sent is told from what was closed otherwise: it spends no budget."""
    return None if by is None else ClosedBy.NOT_SENT if by in _UNSENT else ClosedBy.REJECTED


def _within(distance: int, horizon: int) -> int:
    return max(-horizon, min(horizon, distance))


def _spoken(observations: tuple[Observation, ...]) -> tuple[Observation, ...]:
    """Keep one of each observation that a later decision may ask for."""
    kept: dict[Hashable, Observation] = {}
    for one in observations:
        if one.confirms or one.type in _SPEAKS:
            kept[one.type, one.attempt, one.confirms] = one
    nothing: dict[str, Any] = {}
    ordered = sorted(kept.values(), key=lambda one: (one.confirms, one.type, one.attempt))
    return tuple(one._replace(sequence=number, at_us=START_US, data=nothing) for number, one in enumerate(ordered, 1))
