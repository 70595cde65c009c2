"""What certification needs of a destination: a place to act in, troubles to make, and a count that nobody argues with.

Subclass Sandbox for a destination of your own. ProviderSandbox is the built-in one: the fake provider in a process of its own.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from settled.testing.faults import Fault, ReadFault
from settled.testing.http import ProviderClient, running_provider
from settled.testing.payments import reference_of

URL_VARIABLE: Final = "FAKE_PROVIDER_URL"


class Trouble(NamedTuple):
    """One misbehaviour of a destination: what becomes of the first call, and of the reads after it."""

    name: str
    call: Fault = Fault.NONE
    reads: ReadFault = ReadFault.NONE
    told: str = ""


TROUBLES: Final = (
    Trouble("none", told="it answers"),
    Trouble("refused", Fault.REFUSE, told="the connection is refused"),
    Trouble("rejected", Fault.REJECT, told="it refuses for good"),
    Trouble("lost before", Fault.FAIL_BEFORE_COMMIT, told="the connection is cut before the commit"),
    Trouble("answer lost", Fault.LOSE_ANSWER, told="it commits, the answer is lost"),
    Trouble("error after", Fault.ERROR_AFTER_COMMIT, told="it commits, and answers 500"),
    Trouble("committed late", Fault.COMMIT_LATE, told="the connection is cut, it commits later"),
    Trouble("answer held", Fault.HANG, told="it commits, the answer does not come in time"),
    Trouble("answer garbled", Fault.MALFORMED_ANSWER, told="it commits, the answer cannot be read"),
    Trouble("reads down", Fault.LOSE_ANSWER, ReadFault.UNAVAILABLE, "the answer is lost, and reads fail"),
    Trouble("reads stale", Fault.LOSE_ANSWER, ReadFault.STALE, "the answer is lost, and reads lag behind"),
    Trouble("search broken", Fault.LOSE_ANSWER, ReadFault.FALSE_NEGATIVE, "the answer is lost, and searches find nothing at all"),
    Trouble("pages cut", Fault.LOSE_ANSWER, ReadFault.PARTIAL_PAGE, "the answer is lost, and the first page is empty"),
    Trouble("wrong identity", Fault.LOSE_ANSWER, ReadFault.WRONG_IDENTITY, "the answer is lost, and searches show another's effect"),
)
"""What a destination may do without being at fault."""

BEYOND: Final = (
    Trouble("committed twice", Fault.COMMIT_TWICE, told="it commits one request two times"),
    Trouble("search lies", Fault.LOSE_ANSWER, ReadFault.LYING, "the answer is lost, and its search hides what it holds"),
    Trouble("key forgotten", Fault.FORGET_KEY, told="the answer is lost, and it forgets the key at once"),
)
"""What no contract can defend against everywhere: told as what the contract rests on, no part of the verdict."""


class Sandbox:
    """A destination for one certification. Its methods may be called from several threads.

    `troubles` names those of TROUBLES and BEYOND that it can make. `late_seconds` and `lag_seconds` say how late it commits and
    how far its reads lag in the troubles that are about time: no longer than the real destination may.
    """

    troubles: frozenset[str] = frozenset({"none"})
    late_seconds: float = 1.0
    lag_seconds: float = 1.0
    seconds_held: float = 60.0
    key_window: float | None = None
    """Seconds for which it remembers a key, None: for ever. Beside a finite window of the contract a shortened one is set before `open`."""

    def open(self, folder: Path) -> Mapping[str, str]:
        """Start it in `folder`; return the environment that handlers and probes need to find it."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop what was started."""

    def arguments(self, case: str) -> dict[str, Any]:
        """Return arguments of an operation that nobody has asked for before. `case` is unique."""
        raise NotImplementedError

    def arm(self, arguments: dict[str, Any], trouble: Trouble, *, held: bool = False) -> None:
        """Let the first call for these arguments meet this trouble; `held`: it works on it for `late_seconds` before."""
        raise NotImplementedError

    def hold_answer(self, arguments: dict[str, Any]) -> None:
        """Let the first call for these arguments commit, and its answer never come. Optional: leave it and that point is not tried."""
        raise NotImplementedError

    def reached(self, arguments: dict[str, Any], what: str) -> bool:
        """Whether a request for these arguments was `received`, or an effect `committed`."""
        raise NotImplementedError

    def count(self, arguments: dict[str, Any]) -> int:
        """Count the effects that really exist for these arguments, whatever readers are shown."""
        raise NotImplementedError

    def undecided(self) -> int:
        """How many accepted requests may still be committed."""
        return 0


class ProviderSandbox(Sandbox):
    """The fake provider. A handler finds its URL in the environment variable FAKE_PROVIDER_URL.

    Declare here what your destination is: `idempotent` if it deduplicates by key, `key_window` in seconds how long it remembers,
    `late_seconds` how late it may commit, `lag_seconds` how far its reads may lag.
    """

    troubles = frozenset(one.name for one in (*TROUBLES, *BEYOND)) - {"refused"}  # it listens as long as it runs

    def __init__(
        self, *, idempotent: bool = False, key_window: float | None = None, late_seconds: float = 1.0, lag_seconds: float = 1.0
    ) -> None:
        self.late_seconds, self.lag_seconds, self.key_window = late_seconds, lag_seconds, key_window
        self._idempotent = idempotent
        self._running = contextlib.ExitStack()
        self.client = ProviderClient("http://127.0.0.1:0")

    def open(self, folder: Path) -> Mapping[str, str]:
        """Start the provider's process."""
        provider = running_provider(file=folder / "effects.jsonl", idempotent=self._idempotent, key_window=self.key_window)
        running = self._running.enter_context(provider)
        self.client = running.client
        return {URL_VARIABLE: running.url}

    def close(self) -> None:
        """Stop the provider."""
        self._running.close()

    def arguments(self, case: str) -> dict[str, Any]:
        """Return a payment."""
        return {"payment": case, "amount_cents": 2500, "currency": "eur"}

    def reference(self, arguments: dict[str, Any]) -> str:
        """Return what the provider files the effect under; override it together with `arguments`."""
        return reference_of(arguments)

    def arm(self, arguments: dict[str, Any], trouble: Trouble, *, held: bool = False) -> None:
        """Arm the provider."""
        reference = self.reference(arguments)
        hold = self.late_seconds if held else 0.0
        seconds = {Fault.COMMIT_LATE: self.late_seconds, Fault.HANG: self.seconds_held}.get(trouble.call, 0.0)
        self.client.fail_next(trouble.call, reference=reference, seconds=seconds, hold_seconds=hold)
        if trouble.reads is not ReadFault.NONE:
            self.client.fail_reads(trouble.reads, reference=reference, seconds=self.lag_seconds)

    def hold_answer(self, arguments: dict[str, Any]) -> None:
        """Let the provider hang after the commit."""
        self.client.fail_next(Fault.HANG, reference=self.reference(arguments), seconds=self.seconds_held)

    def reached(self, arguments: dict[str, Any], what: str) -> bool:
        """Ask the provider."""
        seen = self.client.truth()["calls" if what == "received" else "effects"]
        return bool(seen.get(self.reference(arguments), 0))

    def count(self, arguments: dict[str, Any]) -> int:
        """Ask the provider's own count."""
        return self.client.count(self.reference(arguments))

    def undecided(self) -> int:
        """Ask how many requests are open, those aside whose answer is only held."""
        return int(self.client.truth()["undecided"])
