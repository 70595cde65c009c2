"""What a decision looks at: one operation, its history, the terms that bind it, and the moment."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from settled.core.fold import NO_DATA, Event, advance
from settled.core.history import EMPTY, Attempt, History, fold_history
from settled.core.moment import Moment
from settled.core.row import Row
from settled.core.terms import Terms
from settled.core.words import EventType, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation under decision.

    `stored` maps ids of stored snapshots to terms; `current` are those of the contract registered here, None where it
    is not. `draw` is a random number in [0, 1) for jitter; `wall_highest_us` the highest wall clock ever stored. `held`
    says that the contract, its queue or everything is paused, so that no retry is decided on.
    """

    row: Row
    now: Moment
    current: Terms | None
    stored: Mapping[int, Terms]
    history: History = EMPTY
    wall_highest_us: int = 0
    draw: float = 0.0
    held: bool = False

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for a row that no ledger can hold: on such a one nothing is decided."""
        row = self.row
        if type(row.status) is not Status:
            raise TypeError(f"operation {row.operation_id!r} has the status {row.status!r}, which is no Status. Nothing was decided.")
        if type(row.attempt) is not int or row.attempt < (row.status is Status.DISPATCHED):
            raise ValueError(f"operation {row.operation_id!r} has the attempt {row.attempt!r}. Nothing was decided.")

    def event(
        self,
        kind: EventType,
        status: Status | None = None,
        *,
        attempt: int | None = None,
        data: Mapping[str, Any] = NO_DATA,
    ) -> Event:
        """Build an event at this moment; without a status it moves nothing."""
        return Event(
            kind,
            self.row.status if status is None else status,
            self.row.attempt if attempt is None else attempt,
            self.now.wall_us,
            data,
        )

    def after(self, events: Iterable[Event]) -> "Case":
        """Return the case as it stands after `events`."""
        happened = tuple(events)
        row = self.row
        for event in happened:
            row = advance(row, event)
        return replace(self, row=row, history=fold_history(happened, self.history, self.row.sequence))

    @property
    def boot(self) -> list[Any]:
        """This moment's boot clock, as events store it."""
        return [self.now.boot_us, self.now.boot_id]

    def terms_of(self, attempt: Attempt) -> Terms | None:
        """Return the terms stored when `attempt` was dispatched."""
        return self.stored.get(attempt.terms) if attempt.terms is not None else None

    def binding_terms(self) -> tuple[Terms, ...]:
        """Return all terms that must allow a decision: those of each open attempt, the row's, and the current ones."""
        own = self.stored.get(self.row.terms) if self.row.terms is not None else None
        if own is self.current and own is not None and not self.history.attempts:  # as for nearly every plain return
            return (own,)
        found = [self.terms_of(attempt) for attempt in self.history.open_attempts]
        found += [own, self.current]
        return tuple({id(terms): terms for terms in found if terms is not None}.values())  # by identity: hashing forty fields is slow

    @property
    def terms(self) -> Terms:
        """Return the terms for everything that only needs one set: the current, else the row's, else the defaults."""
        if self.current is not None:
            return self.current
        stored = self.stored.get(self.row.terms) if self.row.terms is not None else None
        return stored or Terms(name=self.row.contract)
