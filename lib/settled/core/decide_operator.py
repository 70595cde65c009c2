"""What a person may decide, and from when: cancel, confirm, reject, authorize a retry, stop."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from settled.core.case import Case
from settled.core.correlate import is_second_id
from settled.core.decide_evidence import quiet_since
from settled.core.decide_unknown import quarantine
from settled.core.errors import TransitionRefusedError
from settled.core.fold import Event
from settled.core.history import Observation
from settled.core.moment import SECOND_US, surely_elapsed_us
from settled.core.terms import bounds_us
from settled.core.words import EventType, Reason, Status

_DECIDABLE = (Status.OUTCOME_UNKNOWN, Status.QUARANTINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Who decides, why, and what the person saw. All texts are non-blank.

    `actor` is claimed; `os_user` is who the system says it is; `principal` is by whom two persons are told apart.
    """

    actor: str
    reason: str
    evidence_reference: str
    expected_version: int
    os_user: str = ""
    principal: str = ""

    def facts(self) -> dict[str, Any]:
        """Return what the event keeps of the decision."""
        return {
            "actor": self.actor,
            "reason_given": self.reason,
            "evidence_reference": self.evidence_reference,
            "seen_version": self.expected_version,
            "os_user": self.os_user,
            "principal": self.principal,
        }


def decide_confirm(
    case: Case, decision: Decision, *, output_digest: str | None, provider_operation_id: str | None
) -> tuple[Event, ...]:
    """Confirm by a person's word. Raises TransitionRefusedError."""
    _check(case, decision, "confirm")
    data: dict[str, Any] = {**decision.facts(), "boot": case.boot}
    if output_digest is not None:
        data["out"] = output_digest
    if provider_operation_id is not None:
        data["id"] = provider_operation_id
        if is_second_id(case, provider_operation_id):
            data["duplicate"] = True
    return (case.event(EventType.OPERATOR_CONFIRMED, Status.CONFIRMED, data=data),)


def decide_reject(case: Case, decision: Decision, *, nothing_can_arrive: bool) -> tuple[Event, ...]:
    """Reject by a person's assertion that no earlier attempt took effect or still can. Raises TransitionRefusedError."""
    _check(case, decision, "reject")
    _check_quiet(case, "reject", nothing_can_arrive)
    data = {**decision.facts(), "boot": case.boot, "assert_nothing_can_arrive": nothing_can_arrive}
    return (case.event(EventType.OPERATOR_REJECTED, Status.REJECTED, data=data),)


def decide_authorize_retry(
    case: Case, decision: Decision, *, nothing_can_arrive: bool, accept_second_effect: bool
) -> tuple[Event, ...]:
    """Let one more attempt be dispatched, by the same assertion. Raises TransitionRefusedError.

    Refused while a confirming observation stands, unless a second effect is accepted in so many words.
    """
    _check(case, decision, "authorize-retry")
    if any(_says_it_happened(seen) for seen in case.history.observations) and not accept_second_effect:
        raise TransitionRefusedError(
            case.row.operation_id, case.row.status, "authorize-retry", "an observation says that the effect happened",
            "Confirm it instead, or accept a second effect explicitly: --accept-second-effect",
        )  # fmt: skip
    _check_quiet(case, "authorize-retry", nothing_can_arrive)
    data = {
        **decision.facts(),
        "boot": case.boot,
        "basis": "operator",
        "due": case.now.wall_us,
        "assert_nothing_can_arrive": nothing_can_arrive,
        "accept_second_effect": accept_second_effect,
    }
    return (case.event(EventType.OPERATOR_RETRY_AUTHORIZED, Status.PREPARED, data=data),)


def decide_cancel(case: Case, actor: str, reason: str, os_user: str, principal: str = "") -> tuple[Event, ...]:
    """Call off what was never sent. Raises TransitionRefusedError where an attempt is open or already settled."""
    row = case.row
    data = {"actor": actor, "reason_given": reason, "os_user": os_user, "principal": principal, "boot": case.boot}
    if row.status is Status.PREPARED and row.open_attempts == 0:
        if row.reason == Reason.EVIDENCE_BEFORE_DISPATCH:
            return (quarantine(case, Reason.CONFLICTING_EVIDENCE, data),)
        return (case.event(EventType.CANCELLED, Status.CANCELLED, data=data),)
    if row.status is Status.DISPATCHED:
        raise TransitionRefusedError(
            row.operation_id, row.status, "cancel", "its handler has been started",
            f"To stop the handler: settled op stop {row.operation_id}",
        )  # fmt: skip
    why = "an earlier attempt may have taken effect" if row.status is Status.PREPARED else "only what was never sent can be called off"
    raise TransitionRefusedError(row.operation_id, row.status, "cancel", why)


def decide_stop_request(case: Case, actor: str, reason: str, os_user: str, principal: str = "") -> tuple[Event, ...]:
    """Ask the owner to stop a running handler. Raises TransitionRefusedError for any status but dispatched."""
    if case.row.status is not Status.DISPATCHED:
        raise TransitionRefusedError(case.row.operation_id, case.row.status, "stop", "no handler is running")
    data = {"actor": actor, "reason_given": reason, "os_user": os_user, "principal": principal, "boot": case.boot}
    return (case.event(EventType.STOP_REQUESTED, data=data),)


def _check(case: Case, decision: Decision, verb: str) -> None:
    row = case.row
    if row.status not in _DECIDABLE:
        raise TransitionRefusedError(row.operation_id, row.status, verb, "only an unknown or quarantined operation is decided by a person")
    if row.version != decision.expected_version:
        raise TransitionRefusedError(
            row.operation_id, row.status, verb,
            f"you decided on version {decision.expected_version}, it is now version {row.version}",
            f"Look again before you decide: settled op show {row.operation_id}",
        )  # fmt: skip


def _says_it_happened(seen: Observation) -> bool:
    """A committed answer or a late return stands against a retry even where it was not accepted as a confirmation."""
    return seen.confirms or seen.type in (EventType.PROBE_COMMITTED, EventType.LATE_RETURN)


def _check_quiet(case: Case, verb: str, nothing_can_arrive: bool) -> None:
    """Refuse until every open attempt's fence + bounds have passed, unless a person asserts that nothing can arrive."""
    if nothing_can_arrive:
        return
    bounds = bounds_us(case.binding_terms())
    for attempt in case.history.open_attempts:
        since = quiet_since(case, attempt)
        if since is None:
            why = f"attempt {attempt.number} may still run (it has no fence), so that its effect can still arrive"
            _refuse_early(case, verb, why)
        left = bounds - surely_elapsed_us(since, case.now)
        if left >= 0:
            basis = attempt.fence or "its recorded end"
            when = _utc(case.now.wall_us + left)
            _refuse_early(case, verb, f"attempt {attempt.number} ({basis}) may still arrive until {when}")


def _refuse_early(case: Case, verb: str, why: str) -> NoReturn:
    raise TransitionRefusedError(
        case.row.operation_id, case.row.status, verb, why,
        "Wait, or assert it: --assert-nothing-can-arrive",
    )  # fmt: skip


def _utc(wall_us: int) -> str:
    return datetime.fromtimestamp(wall_us // SECOND_US, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
