"""Judge what a certification saw: each case by the destination's own count, and each claim of the contract by the cases. Pure.

Promise: what is UNKNOWN and was put before a person is no failure, and no failure is ever read as one of those.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from settled.core.terms import Terms
from settled.core.words import ClosedBy, EventType, Outcome, Status, Weakness
from settled.testing.sandbox import Trouble
from settled_worker.testing.points import NONE

UNBOUND: Final = (Weakness.REFERENCE_MISSING.value, Weakness.REFERENCE_MISMATCH.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One operation after its round: what settled says of it, and what the destination counted."""

    point: str
    host: str
    trouble: str
    told: str
    operation_id: str
    status: str
    outcome: str | None
    reason: str | None
    attempts: int
    effects: int
    events: tuple[str, ...]
    bases: tuple[str, ...]
    closed_by: tuple[str, ...]
    weaknesses: tuple[str, ...]
    at_point: bool = True
    """Whether this operation was at the point when the worker was killed, and not one that ran beside it."""

    @property
    def size(self) -> int:
        """How many things had to go wrong."""
        return sum(one != NONE for one in (self.point, self.host, self.trouble))

    @property
    def settled(self) -> bool:
        return self.status in (Status.CONFIRMED.value, Status.REJECTED.value, Status.CANCELLED.value)

    @property
    def left_to_a_person(self) -> bool:
        return self.outcome == Outcome.UNKNOWN.value and self.reason is not None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One case that must not be, and the claim of the contract that it disproves; None where no claim explains it."""

    what: str
    claim: str | None
    case: Seen


def judge(seen: Seen) -> Failure | None:
    """Return what is wrong with a case, None where nothing is."""
    if seen.effects > 1:
        return Failure(what=f"{seen.effects} effects of one operation", claim=_claim_behind_a_repeat(seen), case=seen)
    if seen.outcome == Outcome.CONFIRMED.value and not seen.effects:
        return Failure(what="CONFIRMED, and there is no effect", claim=_claim_behind_a_confirmation(seen), case=seen)
    if seen.outcome == Outcome.FAILED.value and seen.effects:
        return Failure(what="FAILED, and there is an effect", claim=_claim_behind_a_closing(seen.closed_by[-1:]), case=seen)
    if not seen.settled and not seen.left_to_a_person:
        return Failure(what=f"stuck in {seen.status}: neither settled nor put before a person", claim=None, case=seen)
    return None


CLAIM_KEY: Final = "the destination deduplicates by the key (provider_idempotency_guaranteed, for its window)"
CLAIM_ABSENCE: Final = "an absence is terminal (not_committed(terminal=True), with network_drain, commit_horizon and read_lag)"
CLAIM_IDENTITY: Final = "a probe echoes the reference of the operation (provider_reference)"
CLAIM_REJECTED: Final = "EffectRejected means that nothing was done"
CLAIM_NOT_SENT: Final = "NotSent means that nothing was sent"
CLAIM_RETURN: Final = "a return means that it was done (confirm_on='return')"
CLAIM_FOUND: Final = "COMMITTED means that the probe found this very effect"
CLAIM_FINDS: Final = "the probe finds an effect that is there"
CLAIM_STORABLE: Final = "what the handler returns can be stored, and meets the postcondition"
_BY_BASIS: Final[Mapping[str, str]] = {
    "terminal_absence": CLAIM_ABSENCE,
    "key_guarantee": CLAIM_KEY,
    "rejected_retryable": CLAIM_REJECTED,
    "not_sent": CLAIM_NOT_SENT,
}
_BY_CLOSING: Final[Mapping[str, str]] = {
    ClosedBy.REJECTED.value: CLAIM_REJECTED,
    ClosedBy.NOT_SENT.value: CLAIM_NOT_SENT,
    ClosedBy.TERMINAL_ABSENCE.value: CLAIM_ABSENCE,
}


def _claim_behind_a_repeat(seen: Seen) -> str | None:
    return next((claim for basis, claim in _BY_BASIS.items() if basis in seen.bases), None)


def _claim_behind_a_closing(closed_by: Sequence[str]) -> str | None:
    return next((_BY_CLOSING[one] for one in closed_by if one in _BY_CLOSING), None)


def _claim_behind_a_confirmation(seen: Seen) -> str | None:
    return CLAIM_RETURN if seen.events and seen.events[-1] in (EventType.RETURNED.value, EventType.LATE_RETURN.value) else CLAIM_FOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim: how many cases rested on it, and which disproved it, the smallest first."""

    name: str
    rested_on: int
    false_in: tuple[Failure, ...]

    @property
    def verdict(self) -> str:
        if self.false_in:
            return "false"
        return "held where tried" if self.rested_on else "not tried"


def judge_claims(cases: Iterable[Seen], failures: Iterable[Failure], terms: Terms) -> list[Claim]:
    """Return each claim that the contract makes, with the cases that rested on it."""
    every = list(cases)
    found = [*failures, *_unbound(every, terms), *_unseen(every, terms), *_not_accepted(every)]
    rests = {
        CLAIM_KEY: terms.key_guaranteed and sum("key_guarantee" in one.bases for one in every),
        CLAIM_ABSENCE: terms.has_probe and sum(ClosedBy.TERMINAL_ABSENCE.value in one.closed_by for one in every),
        CLAIM_IDENTITY: terms.has_probe and terms.has_reference and sum(_answered(one) for one in every),
        CLAIM_FOUND: terms.has_probe and sum(EventType.PROBE_COMMITTED.value in one.events for one in every),
        CLAIM_FINDS: terms.has_probe and sum(one.trouble in _LOST and one.point == NONE == one.host for one in every),
        CLAIM_RETURN: terms.confirm_on == "return" and sum(EventType.RETURNED.value in one.events for one in every),
        CLAIM_STORABLE: sum(_returned(one) for one in every),
        CLAIM_REJECTED: sum(ClosedBy.REJECTED.value in one.closed_by for one in every),
        CLAIM_NOT_SENT: sum(ClosedBy.NOT_SENT.value in one.closed_by for one in every),
    }
    claims = []
    for name, count in rests.items():
        false_in = sorted((one for one in found if one.claim == name), key=lambda one: one.case.size)
        if count is not False or false_in:
            claims.append(Claim(name=name, rested_on=int(count), false_in=tuple(false_in)))
    return claims


_LOST: Final = ("answer lost", "error after")


def _answered(seen: Seen) -> bool:
    return any(event.startswith("probe_") for event in seen.events)


def _unbound(cases: Iterable[Seen], terms: Terms) -> list[Failure]:
    """A probe whose answers name another operation or none, although the destination showed the right one."""
    if not terms.has_reference:
        return []
    return [
        Failure(what="the probe's answer names no operation, or another one, and so decides nothing", claim=CLAIM_IDENTITY, case=one)
        for one in cases
        if one.trouble in _LOST and any(weak in UNBOUND for weak in one.weaknesses)
    ]


def _unseen(cases: Iterable[Seen], terms: Terms) -> list[Failure]:
    """An effect that is there, a read path that works, and a probe that never said so."""
    return [
        Failure(what="the effect is there, and the probe never found it", claim=CLAIM_FINDS, case=one)
        for one in cases
        if terms.has_probe
        and one.trouble in _LOST
        and (one.point, one.host) == (NONE, NONE)
        and one.effects
        and not one.settled
        and not any(weak in UNBOUND for weak in one.weaknesses)
    ]


_NOT_ACCEPTED: Final = (EventType.RESULT_NOT_STORABLE.value, EventType.POSTCONDITION_FAILED.value)


def _returned(seen: Seen) -> bool:
    return EventType.RETURNED.value in seen.events or not set(_NOT_ACCEPTED).isdisjoint(seen.events)


def _not_accepted(cases: Iterable[Seen]) -> list[Failure]:
    """A handler that returned to a destination without a fault, and whose result was not accepted: the effect is real, the answer lost."""
    return [
        Failure(what="the handler returned, and what it returned was not accepted", claim=CLAIM_STORABLE, case=one)
        for one in cases
        if one.trouble == NONE and not set(_NOT_ACCEPTED).isdisjoint(one.events)
    ]


def told_of(trouble: Trouble) -> str:
    """Say a trouble in words."""
    return trouble.told or trouble.name
