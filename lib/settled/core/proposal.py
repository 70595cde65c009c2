"""The two-person rule: what one person proposed, whether it still stands, and whether another one may approve it.

Promise: a proposal holds nothing and moves nothing. It lapses by itself: with its time, and with any move of the operation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from settled.core.case import Case
from settled.core.decide_operator import Decision, decide_authorize_retry, decide_confirm, decide_reject
from settled.core.errors import TransitionRefusedError
from settled.core.fold import Event
from settled.core.words import EventType

Verb = Literal["confirm", "reject", "authorize-retry"]
VERBS: Final[tuple[Verb, ...]] = ("confirm", "reject", "authorize-retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A resolution with all its facts, as one person means it. `output` is the digest of a result that goes with confirm."""

    verb: Verb
    decision: Decision
    output: str | None = None
    provider_operation_id: str | None = None
    nothing_can_arrive: bool = False
    accept_second_effect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What stands proposed. `number` is the sequence of its event, by which it is approved or declined."""

    number: int
    wanted: Wanted
    at_us: int
    expires_us: int


def decide(case: Case, wanted: Wanted) -> tuple[Event, ...]:
    """Return the events of a resolution. Raises TransitionRefusedError."""
    match wanted.verb:
        case "confirm":
            return decide_confirm(
                case, wanted.decision, output_digest=wanted.output, provider_operation_id=wanted.provider_operation_id
            )
        case "reject":
            return decide_reject(case, wanted.decision, nothing_can_arrive=wanted.nothing_can_arrive)
        case "authorize-retry":
            return decide_authorize_retry(
                case,
                wanted.decision,
                nothing_can_arrive=wanted.nothing_can_arrive,
                accept_second_effect=wanted.accept_second_effect,
            )


def decide_propose(case: Case, wanted: Wanted, standing: Proposal | None, expires_us: int) -> tuple[Event, ...]:
    """Put a resolution on record that another person may approve. Raises TransitionRefusedError for what could not be carried out."""
    row = case.row
    if standing is not None:
        raise TransitionRefusedError(
            row.operation_id, row.status, "propose", f"proposal {standing.number} ({standing.wanted.verb}) stands already",
            f"Approve or decline that one first: settled quarantine decline {row.operation_id} --proposal {standing.number}",
        )  # fmt: skip
    decide(case, wanted)  # what would be refused now is no proposal
    data: dict[str, Any] = {**wanted.decision.facts(), "verb": wanted.verb, "boot": case.boot, "expires": case.now.wall_us + expires_us}
    if wanted.output is not None:
        data["out"] = wanted.output
    if wanted.provider_operation_id is not None:
        data["id"] = wanted.provider_operation_id
    for name in ("nothing_can_arrive", "accept_second_effect"):
        if getattr(wanted, name):
            data[name] = True
    return (case.event(EventType.PROPOSED, data=data),)


def decide_approve(case: Case, proposal: Proposal, approver: Decision) -> tuple[Event, ...]:
    """Carry out a proposal by the word of a second person. Raises TransitionRefusedError where it is the same one."""
    row, first = case.row, proposal.wanted.decision
    if _same(first.principal, approver.principal) or _same(first.actor, approver.actor):
        raise TransitionRefusedError(
            row.operation_id, row.status, "approve", f"{first.actor!r} ({first.principal}) proposed it, and a second person must approve",
            f"Ask somebody else, under an account of their own: settled quarantine approve {row.operation_id} --proposal {proposal.number}",
        )  # fmt: skip
    (event,) = decide(case, proposal.wanted)
    data = {
        **event.data,
        "proposal": proposal.number,
        "approved_by": approver.actor,
        "approver_reason": approver.reason,
        "approver_os_user": approver.os_user,
        "approver_principal": approver.principal,
    }
    if proposal.wanted.output is not None:
        data["part"] = proposal.number  # the output was stored with the proposal
    return (event._replace(data=data),)


def decide_decline(case: Case, proposal: Proposal, decliner: Decision) -> tuple[Event, ...]:
    """Put on record that a proposal is not carried out. Whoever proposed it may take it back this way, too."""
    said = {name: value for name, value in decliner.facts().items() if name not in ("evidence_reference", "seen_version")}
    return (case.event(EventType.DECLINED, data={**said, "proposal": proposal.number}),)


def standing_proposal(events: Iterable[Event], version: int, now_us: int) -> Proposal | None:
    """Return the proposal that may be approved now: the last one, not declined, not expired, of this version of the operation."""
    found = last_proposal(events)
    return None if found is None or why_lapsed(found, version, now_us) else found


def last_proposal(events: Iterable[Event]) -> Proposal | None:
    """Return the last proposal that was not declined, standing or lapsed."""
    found: Proposal | None = None
    for sequence, event in enumerate(events, 1):
        if event.type is EventType.PROPOSED:
            found = _read(sequence, event)
        elif event.type is EventType.DECLINED and found is not None and event.data.get("proposal") == found.number:
            found = None
    return found


def why_lapsed(proposal: Proposal, version: int, now_us: int) -> str | None:
    """Return why a proposal can be approved no more, None where it can."""
    seen = proposal.wanted.decision.expected_version
    if seen != version:
        return f"it was made for version {seen}, the operation is now at version {version}"
    return "it has expired" if now_us >= proposal.expires_us else None


def _read(sequence: int, event: Event) -> Proposal:
    data: Mapping[str, Any] = event.data
    decision = Decision(
        actor=data["actor"],
        reason=data["reason_given"],
        evidence_reference=data["evidence_reference"],
        expected_version=data["seen_version"],
        os_user=data["os_user"],
        principal=data["principal"],
    )
    wanted = Wanted(
        verb=data["verb"],
        decision=decision,
        output=data.get("out"),
        provider_operation_id=data.get("id"),
        nothing_can_arrive=bool(data.get("nothing_can_arrive")),
        accept_second_effect=bool(data.get("accept_second_effect")),
    )
    return Proposal(number=sequence, wanted=wanted, at_us=event.at_us, expires_us=data["expires"])


def _same(one: str, other: str) -> bool:
    return one.strip().casefold() == other.strip().casefold()
