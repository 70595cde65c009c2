"""Rows, terms, moments and cases for tests of the core, built only by its own decisions and fold.

The contract of docs/promises.md stands behind the defaults: no probe, no guarantee, one attempt, no drain, process isolation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from settled.core.canonical import compact_json, parse_strict_json
from settled.core.case import Case
from settled.core.decide_claim import decide_claim
from settled.core.decide_end import End, EndFacts, decide_end
from settled.core.decide_evidence import Answer, decide_after_probe
from settled.core.decide_late import decide_late
from settled.core.decide_operator import Decision
from settled.core.evidence import ProbeResult
from settled.core.fold import Event
from settled.core.history import EMPTY
from settled.core.moment import SECOND_US, Moment
from settled.core.row import Row
from settled.core.terms import Terms
from settled.core.words import EventType, FenceBasis, Reason, Status

HOUR, DAY = 3600, 86_400
START_US = 1_800_000_000 * SECOND_US
REFERENCE = "INV-1042"
KEY = "capture:INV-1042"
DIGEST = "d" * 64


def terms(**changes: Any) -> Terms:
    """Return the terms of capture_payment; fields that end in `_us` may be given in seconds without the ending."""
    named = {f"{name}_us" if f"{name}_us" in Terms.__dataclass_fields__ else name: value for name, value in changes.items()}
    scaled = {name: value * SECOND_US if name.endswith("_us") and value is not None else value for name, value in named.items()}
    quiet = {"max_attempts": 1, "network_drain_us": 0, "retry_jitter": 0.0, "probe_jitter": 0.0, "has_reference": True}
    return Terms(name="capture_payment", **{**quiet, **scaled})


def guaranteed(**changes: Any) -> Terms:
    """Return the terms written K in docs/promises.md: a guaranteed key without a stated end, three attempts."""
    return terms(**{"has_key": True, "key_guaranteed": True, "max_attempts": 3, **changes})


def at(seconds: float, *, boot_id: str = "boot-1", boot_seconds: float | None = None) -> Moment:
    """Return the moment `seconds` after the start of the test's time; the boot clock runs with it unless given."""
    boot = seconds if boot_seconds is None else boot_seconds
    return Moment(START_US + round(seconds * SECOND_US), round((1000 + boot) * SECOND_US), boot_id)


def prepared_row(**changes: Any) -> Row:
    """Return the row that `submitted` makes."""
    row = Row(
        id=1, operation_id="invoice:INV-1042:capture", contract="capture_payment", contract_version="1", queue="default", risk="high",
        fingerprint="json1:0", provider_key=KEY, provider_reference=REFERENCE, derived=1, priority=0, deadline_us=None,
        created_us=START_US, status=Status.PREPARED, reason=None, due_us=START_US, attempt=0, version=1, sequence=1, open_attempts=0,
        unfenced=0, kept=0, lease_owner=None, terms=None, probes_spent=0, unknown_since_us=None, escalate_us=None, settled_by=None,
        provider_operation_id=None, duplicate_suspected=0, output_part=None, error=None, updated_us=START_US, chain=b"",
    )  # fmt: skip
    return row._replace(**changes)


@dataclass
class Life:
    """One operation as it lives through decisions: each verb decides at `now` and folds what was decided."""

    current: Terms | None
    row: Row = field(default_factory=prepared_row)
    now: Moment = field(default_factory=lambda: at(0))
    stored: dict[int, Terms] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    case_changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.submitted = self.row
        self._case = Case(row=self.row, now=self.now, current=self.current, stored=self.stored, history=EMPTY)

    @property
    def case(self) -> Case:
        return replace(self._case, now=self.now, current=self.current, stored=self.stored, **self.case_changes)

    def happen(self, events: Iterable[Event]) -> list[EventType]:
        """Fold `events` into the life and return their types. Fails the test where one lacks a fact that others count on."""
        happened = list(events)
        for event in happened:
            before, self._case = self.case, self.case.after([event])
            check_facts(before, self._case, event)
        self.row = self._case.row
        self.events += happened
        return [event.type for event in happened]

    def wait(self, seconds: float) -> "Life":
        """Let time pass on both clocks."""
        self.now = Moment(self.now.wall_us + round(seconds * SECOND_US), self.now.boot_us + round(seconds * SECOND_US), self.now.boot_id)
        return self

    def dispatch(self) -> "Life":
        """Claim under the current terms; fails the test where the claim does not dispatch."""
        assert self.current is not None
        number = next((id_ for id_, one in self.stored.items() if one == self.current), len(self.stored) + 1)
        self.stored[number] = self.current
        claim = decide_claim(self.case, 7, number)
        assert claim.dispatches, claim
        self.happen(claim.events)
        assert (self.row.lease_owner, self.row.terms, self.row.attempt) == (7, number, self.case.history.attempts[-1].number)
        return self

    def end(self, end: End, fence: FenceBasis | None = None, **facts: Any) -> list[EventType]:
        """End the running attempt."""
        return self.happen(decide_end(self.case, EndFacts(end=end, fence=fence, **facts)))

    def late(self, number: int, end: End, **facts: Any) -> list[EventType]:
        """Let an end arrive after its attempt was given up."""
        events = decide_late(self.case, number, EndFacts(end=end, **facts))
        assert all(event.attempt == number for event in events if event.type is not EventType.QUARANTINED), events
        return self.happen(events)

    def probe(self, result: ProbeResult, **facts: Any) -> list[EventType]:
        """Let a probe answer that was started now."""
        return self.happen(decide_after_probe(self.case, Answer(result, **{"started": self.now, **facts})))

    def restore(self) -> "Life":
        """Take the operation for one that may have been dispatched after a backup."""
        age = self.case.terms.unknown_age_max_us
        data: Mapping[str, Any] = {"boot": self.case.boot, "due": self.now.wall_us, "unknown_age_max": age, "news": True}
        self.happen([self.case.event(EventType.RESTORED, Status.OUTCOME_UNKNOWN, attempt=self.row.attempt + 1, data=data)])
        return self


UNDATED = (EventType.QUARANTINED, EventType.HELD, EventType.RELEASED, EventType.APPROVED, EventType.DERIVED)
WITH_A_REASON = (EventType.QUARANTINED, EventType.HELD, EventType.RETRY_WITHDRAWN)

MERGED_BEHIND = (EventType.REJECTED, EventType.NOT_SENT, EventType.NEVER_ENTERED)  # behind evidence_merged, whose version is enough
BASES = ("rejected_retryable", "not_sent", "terminal_absence", "key_guarantee", "operator")


def check_facts(before: Case, afterwards: Case, event: Event) -> None:
    """Fail unless an event says when it happened, when its row is looked at again, and why it stopped, and a person will be told."""
    after, data = afterwards.row, parse_strict_json(compact_json(event.data)) if event.data else {}
    if event.type not in UNDATED:
        boot_us, boot_id = data["boot"]
        assert boot_id and (event.type is EventType.FENCED or [boot_us, boot_id] == before.boot), event
    if event.type in WITH_A_REASON:
        assert Reason(data["reason"]) and (event.type is not EventType.RETRY_WITHDRAWN or not after.reason), event
    if after.open_attempts != before.row.open_attempts and event.type not in MERGED_BEHIND:
        assert after.version > before.row.version, f"{event}: a person who saw the row before must look again"
    if after.status is Status.PREPARED is not before.row.status:
        attempt = afterwards.history.attempt(event.attempt)
        assert attempt is None or attempt.basis in BASES, event
    if after.status in (Status.PREPARED, Status.OUTCOME_UNKNOWN) and after.reason != Reason.KEPT_UNKNOWN:
        assert type(after.due_us) is int, event
    if after.status is Status.OUTCOME_UNKNOWN and after.reason != Reason.KEPT_UNKNOWN:
        assert type(after.escalate_us) is int, event


def dispatched(current: Terms, **row: Any) -> Life:
    """Return an operation whose first attempt is under way."""
    return Life(current, row=prepared_row(**row)).dispatch()


def unknown(current: Terms, end: End = End.TIMED_OUT, fence: FenceBasis | None = FenceBasis.PROCESS_KILLED, **row: Any) -> Life:
    """Return an operation whose first attempt ended without an outcome, as the end itself left it (with its follow-up)."""
    life = dispatched(current, **row)
    life.end(end, fence)
    return life


def committed(**facts: Any) -> ProbeResult:
    """Return a bound answer that the effect is there."""
    return ProbeResult.committed(**{"reference": REFERENCE, **facts})


def absent(**facts: Any) -> ProbeResult:
    """Return a healthy, bound, terminal absence."""
    return ProbeResult.not_committed(**{"healthy": True, "terminal": True, "reference": REFERENCE, **facts})


def decision(life: Life, **changes: Any) -> Decision:
    """Return what a person decides who has just looked."""
    said = {"actor": "ana", "reason": "looked it up", "evidence_reference": "INC-7", "expected_version": life.row.version}
    return Decision(**{**said, **changes})
