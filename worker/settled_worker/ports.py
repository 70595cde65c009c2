"""What the pump is given from outside: room for handlers, recorder slots, and where its news goes."""

from collections.abc import Callable, Sequence
from typing import Protocol

from settled.core.words import Isolation
from settled.steps.ends import Settled

Room = Callable[[Isolation], int]


class Slots(Protocol):
    """The recorder slots of this incarnation."""

    @property
    def free_slots(self) -> int:
        """How many are free."""

    def take_slot(self, row: int, attempt: int) -> int:
        """Write `claimed` into a free one, before the claim commits."""

    def give_slot(self, slot: int, row: int, attempt: int) -> None:
        """Free it again, if it is still this attempt's."""


class Journal(Protocol):
    """Where moves are told once they are recorded."""

    def settled(self, settled: Sequence[Settled]) -> None:
        """Tell what a step recorded."""
