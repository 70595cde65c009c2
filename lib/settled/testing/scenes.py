"""One scenario: an App on a ledger of its own, a provider that counts, and time that a scenario moves. Nothing is shared."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from settled.app import App
from settled.effect import Effect
from settled.operation import Operation
from settled.testing.clock import MovableClock
from settled.testing.faults import Fault
from settled.testing.payments import payment_contract, reference_of
from settled.testing.provider import FakeProvider

ARGUMENTS: Final = {"payment": "INV-1042", "amount_cents": 2500, "currency": "eur"}


@dataclass(slots=True)
class Scene:
    """What a scenario works with. `broken` makes the provider commit its first effect twice, whatever else happens."""

    folder: Path
    broken: bool = False
    clock: MovableClock = field(default_factory=MovableClock)
    hung: threading.Event = field(default_factory=threading.Event)
    provider: FakeProvider = field(init=False)
    apps: list[App] = field(default_factory=list)
    terms: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.provider = FakeProvider(clock=self.clock, sleep=lambda seconds: self._hang(seconds))

    def _hang(self, seconds: float) -> None:
        self.hung.wait(seconds)

    def declare(self, *, idempotent: bool = False, **terms: Any) -> Effect:
        """Declare the payment on a fresh ledger."""
        self.provider.idempotent, self.terms = idempotent, terms
        if self.broken:
            self.provider.fail_next(Fault.COMMIT_TWICE)
        return self.opened()

    def opened(self) -> Effect:
        """Open the ledger as a process that was started anew does, with the same contract."""
        app = App(self.folder / "settled.db", clock=self.clock)
        app.create_database()
        app.shell.draw = lambda: 0.0
        self.apps.append(app)
        return app.register(payment_contract(self.provider, **self.terms))

    def seen(self, operation: Operation, **more: Any) -> dict[str, Any]:
        """Return what is to be compared: what settled says, and what the provider counted."""
        app = self.apps[0]
        now = app.get(operation.operation_id)
        last = now.attempt_records[-1] if now.attempt_records else {}
        reference = reference_of(ARGUMENTS)
        return {
            "operation_id": now.operation_id,
            "status": now.status.value,
            "outcome": None if now.outcome is None else now.outcome.value,
            "reason": now.reason,
            "attempts": now.attempts,
            "execution": last.get("execution"),
            "verification": last.get("verification"),
            "event_types": [event.type for event in app.events(now.operation_id)],
            "calls": self.provider.calls(reference),
            "committed_effect_count": self.provider.count(reference),
            **more,
        }

    def close(self) -> None:
        """Let what hangs go, and close every App."""
        self.hung.set()
        for app in self.apps:
            app.close()


Run = Callable[[Scene], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story and what must be seen after it."""

    name: str
    run: Run
    expected: Mapping[str, Any]

    def differs(self, seen: Mapping[str, Any]) -> str:
        """Say what was not as expected; empty where all was."""
        wrong = [f"{name} is {seen.get(name)!r}, expected {value!r}" for name, value in self.expected.items() if seen.get(name) != value]
        return "; ".join(wrong)
