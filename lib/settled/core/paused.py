"""What is paused at one moment: everything, contracts, queues."""

from typing import Final, NamedTuple


class Paused(NamedTuple):
    """What is paused at one moment. False where nothing is."""

    everything: bool
    contracts: frozenset[str]
    queues: frozenset[str]

    def __bool__(self) -> bool:
        return self.everything or bool(self.contracts) or bool(self.queues)

    def holds(self, contract: str, queue: str) -> bool:
        """Whether an operation of this contract and queue is not dispatched."""
        return self.everything or contract in self.contracts or queue in self.queues


NOTHING: Final = Paused(False, frozenset(), frozenset())
