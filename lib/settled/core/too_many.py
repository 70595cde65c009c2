"""When a contract makes too many unknown outcomes, so that nothing more of it is dispatched until a person has looked."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from settled.core.fold import Event
from settled.core.row import Row
from settled.core.words import EventType, Status

UNKNOWN_STATUSES: Final = (Status.OUTCOME_UNKNOWN, Status.QUARANTINED)
_BUCKETS: Final = 12


class UnknownLimit(NamedTuple):
    """The limits of one contract; None = none.

    `open_max`: so many open unknown outcomes pause it. `rate_max`: so large a share of the attempts that ended within
    `window_us`, where at least `sample_min` did.
    """

    open_max: int | None = None
    rate_max: float | None = None
    window_us: int = 0
    sample_min: int = 0

    @property
    def bucket_us(self) -> int:
        """How long the ends are counted together; the window is looked at in whole buckets."""
        return max(1, self.window_us // _BUCKETS)


class Seen(NamedTuple):
    """What one move says: an attempt ended; its outcome is unknown; the operation has just become unknown."""

    ended: bool
    lost: bool
    became_unknown: bool


def decide_seen(seen: Row, row: Row, events: Sequence[Event]) -> Seen:
    """Read a recorded move. An end that only waits for its probe, as declared, is no lost outcome."""
    ended = seen.status is Status.DISPATCHED and row.status is not Status.DISPATCHED
    now_unknown = row.status in UNKNOWN_STATUSES
    waits = any(event.type is EventType.AWAITING_PROBE for event in events)
    return Seen(ended, ended and now_unknown and not waits, now_unknown and seen.status not in UNKNOWN_STATUSES)


def decide_too_many(limit: UnknownLimit, open_unknown: int, ended: int, lost: int) -> str | None:
    """Return why a contract is to be paused, None where it is not."""
    if limit.open_max is not None and open_unknown >= limit.open_max:
        return f"{open_unknown} open unknown outcomes, limit {limit.open_max}"
    if limit.rate_max is not None and ended >= max(1, limit.sample_min) and lost > limit.rate_max * ended:
        return f"{lost} of the last {ended} outcomes unknown, limit {limit.rate_max:.0%}"
    return None
