"""The words of the project, each a closed list. Their meaning is in docs/glossary.md."""

from enum import StrEnum


class Status(StrEnum):
    """Where an operation stands, and so who acts next. These seven are stored; nothing else is."""

    PREPARED = "prepared"
    DISPATCHED = "dispatched"
    OUTCOME_UNKNOWN = "outcome_unknown"
    QUARANTINED = "quarantined"
    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


SETTLED = frozenset({Status.CONFIRMED, Status.REJECTED, Status.CANCELLED})
FAILED_STATUSES = frozenset({Status.REJECTED, Status.CANCELLED})


class Outcome(StrEnum):
    """What the evidence says.

    CONFIRMED means that the effect happened at least once; it does not deny duplicates. FAILED means that it surely
    did not happen. UNKNOWN means that nobody can say yet.
    """

    CONFIRMED = "CONFIRMED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


class EventType(StrEnum):
    """What happened to an operation. The status after it stands beside it in the event."""

    SUBMITTED = "submitted"
    DERIVED = "derived"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DISPATCHED = "dispatched"
    RETRY_WITHDRAWN = "retry_withdrawn"
    RETURNED = "returned"
    REJECTED = "rejected"
    NEVER_ENTERED = "never_entered"
    NOT_SENT = "not_sent"
    TIMED_OUT = "timed_out"
    RAISED = "raised"
    CRASHED = "crashed"
    LEASE_LOST = "lease_lost"
    STOPPED = "stopped"
    RESULT_NOT_STORABLE = "result_not_storable"
    POSTCONDITION_FAILED = "postcondition_failed"
    AWAITING_PROBE = "awaiting_probe"
    EVIDENCE_MERGED = "evidence_merged"
    PROBE_COMMITTED = "probe_committed"
    PROBE_ABSENT = "probe_absent"
    PROBE_PENDING = "probe_pending"
    PROBE_UNKNOWN = "probe_unknown"
    LATE_RETURN = "late_return"
    LATE_REJECTED = "late_rejected"
    KEY_RETRY = "key_retry"
    QUARANTINED = "quarantined"
    OPERATOR_CONFIRMED = "operator_confirmed"
    OPERATOR_REJECTED = "operator_rejected"
    OPERATOR_RETRY_AUTHORIZED = "operator_retry_authorized"
    RESTORED = "restored"
    HELD = "held"
    RELEASED = "released"
    FENCED = "fenced"
    STOP_REQUESTED = "stop_requested"
    APPROVED = "approved"
    ACKNOWLEDGED = "acknowledged"
    ASSIGNED = "assigned"
    SNOOZED = "snoozed"
    PROPOSED = "proposed"
    DECLINED = "declined"


class FenceBasis(StrEnum):
    """Why an attempt's local code can send no more. A fence never says that nothing happened."""

    NEVER_ENTERED = "never_entered"
    RETURNED = "returned"
    RAISED = "raised"
    PROCESS_KILLED = "process_killed"
    PROCESS_GONE = "process_gone"
    HOST_REBOOTED = "host_rebooted"
    OPERATOR_ASSERTED = "operator_asserted"


class ClosedBy(StrEnum):
    """Why an attempt surely had no effect and cannot have one."""

    REJECTED = "rejected"
    NOT_SENT = "not_sent"
    NEVER_ENTERED = "never_entered"
    TERMINAL_ABSENCE = "terminal_absence"
    OPERATOR_ASSERTED = "operator_asserted"


class Reason(StrEnum):
    """Why a row is quarantined, held or withdrawn."""

    # quarantine
    NO_PROBE = "no_probe"
    PROBE_BUDGET_SPENT = "probe_budget_spent"
    DEADLINE_SPENT = "deadline_spent"
    UNKNOWN_TOO_LONG = "unknown_too_long"
    POSTCONDITION_FAILED = "postcondition_failed"
    CONFLICTING_EVIDENCE = "conflicting_evidence"
    NEEDS_REVIEW = "needs_review"
    RESTORED = "restored"
    # hold
    AWAITING_APPROVAL = "awaiting_approval"
    CONTRACT_MISMATCH = "contract_mismatch"
    NOT_SENT_LIMIT = "not_sent_limit"
    EVIDENCE_BEFORE_DISPATCH = "evidence_before_dispatch"
    KEPT_UNKNOWN = "kept_unknown"
    # a pause that no person made
    TOO_MANY_UNKNOWN = "too_many_unknown"
    # a person's wish, while the handler runs
    STOP_REQUESTED = "stop_requested"
    # a withdrawn retry
    KEY_WINDOW = "key_window"
    DEADLINE = "deadline"
    HELD = "held"
    BUDGET = "budget"


class Weakness(StrEnum):
    """Why a probe's answer was stored as the weaker thing it is."""

    NO_FENCE = "no_fence"
    TOO_EARLY = "too_early"
    NOT_TERMINAL = "not_terminal"
    UNHEALTHY = "unhealthy"
    REFERENCE_MISMATCH = "reference_mismatch"
    REFERENCE_MISSING = "reference_missing"
    AFTER_RETURN = "after_return"
    NOT_STORABLE = "not_storable"
    UNDATED = "undated"


class Isolation(StrEnum):
    """Where a handler runs. Only a process can really be stopped."""

    PROCESS = "process"
    THREAD = "thread"
    ASYNC = "async"


class Risk(StrEnum):
    """How much a contract's effect can hurt. A label: it changes no transition."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    FINANCIAL = "financial"


class NextAction(StrEnum):
    """What whoever submitted an operation should do now."""

    WAIT = "wait"
    ASK_HUMAN = "ask_human"
    USE_RESULT = "use_result"
    DO_NOT_RETRY = "do_not_retry"
