"""Name what a destination may do to one call, and to its readers. Pure: looked up by the fake provider, acted on there."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

SECONDS_MAX: Final = 3600.0


class Fault(StrEnum):
    """What becomes of one call. The provider's own count of effects says what really happened."""

    NONE = "none"
    REFUSE = "refuse"
    """Nothing listens: the connection is refused before a byte is sent."""
    REJECT = "reject"
    """Refused for good, and said so. Nothing was committed."""
    FAIL_BEFORE_COMMIT = "fail_before_commit"
    """The connection is cut; nothing was committed, and nothing will be."""
    LOSE_ANSWER = "lose_answer"
    """Committed; the connection is cut before the answer."""
    ERROR_AFTER_COMMIT = "error_after_commit"
    """Committed; the answer is a 500."""
    COMMIT_LATE = "commit_late"
    """The connection is cut; it is committed `seconds` later."""
    COMMIT_TWICE = "commit_twice"
    """Committed two times, whatever the key says, and answered as if once: the provider itself is at fault."""
    HANG = "hang"
    """Committed; the answer is held back for `seconds`."""
    MALFORMED_ANSWER = "malformed_answer"
    """Committed; the answer cannot be read."""
    FORGET_KEY = "forget_key"
    """Committed, the answer is lost, and the key is forgotten at once."""


class ReadFault(StrEnum):
    """What becomes of reads."""

    NONE = "none"
    UNAVAILABLE = "unavailable"
    """Reads fail."""
    STALE = "stale"
    """Reads show what was there `seconds` ago, and do not say so."""
    FALSE_NEGATIVE = "false_negative"
    """Searches find nothing at all, the positive control included: the index is broken."""
    LYING = "lying"
    """Searches do not find this reference; everything else looks well. No probe can see through it."""
    PARTIAL_PAGE = "partial_page"
    """The first page is empty and says that there is more."""
    WRONG_IDENTITY = "wrong_identity"
    """A search answers with somebody else's effect."""


class Plan(NamedTuple):
    """What the provider does with one call, in this order."""

    commits: int = 1
    late: bool = False
    answer: str = "answer"  # answer, cut, hold, error, reject, garbled, refuse
    keeps_key: bool = True


PLANS: Final[Mapping[Fault, Plan]] = {
    Fault.NONE: Plan(),
    Fault.REFUSE: Plan(commits=0, answer="refuse"),
    Fault.REJECT: Plan(commits=0, answer="reject"),
    Fault.FAIL_BEFORE_COMMIT: Plan(commits=0, answer="cut"),
    Fault.LOSE_ANSWER: Plan(answer="cut"),
    Fault.ERROR_AFTER_COMMIT: Plan(answer="error"),
    Fault.COMMIT_LATE: Plan(late=True, answer="cut"),
    Fault.COMMIT_TWICE: Plan(commits=2),
    Fault.HANG: Plan(answer="hold"),
    Fault.MALFORMED_ANSWER: Plan(answer="garbled"),
    Fault.FORGET_KEY: Plan(answer="cut", keeps_key=False),
}
NEEDS_SECONDS: Final = frozenset({Fault.COMMIT_LATE, Fault.HANG, ReadFault.STALE})


class Armed(NamedTuple):
    """One fault that waits for its call. `hold_seconds` delays what the provider does, whatever that is."""

    fault: Fault
    seconds: float = 0.0
    hold_seconds: float = 0.0

    @property
    def plan(self) -> Plan:
        return PLANS[self.fault]


def check_seconds(seconds: object, fault: Fault | ReadFault | None = None) -> float:
    """Return seconds as a number. Raises TypeError or ValueError; faults that wait need more than 0."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"seconds must be a number, not {seconds!r}")
    if not math.isfinite(seconds) or not 0 <= seconds <= SECONDS_MAX:
        raise ValueError(f"seconds must be from 0 to {SECONDS_MAX:.0f}, not {seconds!r}")
    if fault in NEEDS_SECONDS and not seconds:
        raise ValueError(f"{fault} needs seconds above 0")
    return float(seconds)
