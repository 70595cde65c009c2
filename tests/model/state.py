"""What a state of the whole is made of: the ledger's state by number, and the world around it."""

from typing import Final, Literal, NamedTuple

from settled.core.decide_end import End

Owner = Literal["up", "hung", "gone"]
USED: Final = -1  # the copy has been restored

Code = Literal["queued", "entered", "announced", "sent", "ended"]
Slot = Literal["claimed", "entered", "sending", "revoked", "lost"]
Provider = Literal["nothing", "deciding", "committed", "refused", "repeated"]


class Attempt(NamedTuple):
    """One dispatch as it really is. Ages count ticks; `enter_by` is what is left of the time in which it may be entered.

    `bytes_age` None: nothing is under way. `shown_age`: since the provider committed. `report`: an end that its owner has not
    recorded. `late`: the ledger has given it up.
    """

    owner: Owner = "up"
    code: Code = "queued"
    slot: Slot = "claimed"
    ran: int = 0
    enter_by: int | None = None
    bytes_age: int | None = None
    provider: Provider = "nothing"
    deciding: int = 0
    shown_age: int = 0
    report: End | None = None
    late: bool = False
    rebooted: bool = False


class Probe(NamedTuple):
    """A question under way: when it started, and what it has seen."""

    age: int
    seen: Literal["nothing yet", "committed", "absent"] = "nothing yet"


class State(NamedTuple):
    """One state of the whole: the ledger's by number, and the world's. `looked`: what a person has seen and may still decide on."""

    ledger: int
    attempts: tuple[Attempt, ...] = ()
    probe: Probe | None = None
    key_age: int | None = None
    looked: str | None = None
    backup: int | None = None


Step = tuple[str, str, State]
"""What happened, whose doing it is, and the state after it. `system`: ours, or bound to happen in time; `world`: it may never happen."""
