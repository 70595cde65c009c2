"""A payment provider that fails on request and keeps its own count of what it really committed.

Promise: without threads it is deterministic: the same settings and the same calls give the same effects and answers. It
deduplicates nothing unless told so, every armed fault hits once, and the count of effects is never touched by a read fault.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from settled.clock import Clock, SystemClock
from settled.core.canonical import canonical_text
from settled.core.moment import SECOND_US
from settled.testing.faults import Armed, Fault, ReadFault, check_seconds

CONTROL_REFERENCE: Final = "positive-control"


class ProviderError(Exception):
    """The provider answered with a status that proves nothing about the effect."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"the provider answered {status}: {text}")
        self.status = status


class ProviderRejected(Exception):
    """The provider refused for good. Nothing was committed."""


class AnswerLost(ConnectionError):
    """The connection was cut: it proves nothing about the effect."""


class AnswerLate(TimeoutError):
    """No answer came in time: it proves nothing about the effect."""


class AnswerMalformed(ValueError):
    """An answer came and cannot be read: it proves nothing about the effect."""


class Committed(NamedTuple):
    """One effect that was really committed."""

    effect_id: str
    reference: str
    request: str  # canonical JSON: what was asked for
    key: str | None
    at_us: int  # CLOCK_BOOTTIME of the provider's clock

    def shown(self) -> dict[str, Any]:
        """The effect as callers see it."""
        return {"effect_id": self.effect_id, "reference": self.reference, "request": self.request, "status": "captured"}


class Page(NamedTuple):
    """One page of a search. `more`: the next page's number, None on the last one."""

    found: list[dict[str, Any]]
    more: int | None = None


class _Pending(NamedTuple):
    due_us: int
    reference: str
    request: str
    key: str | None
    plan_commits: int
    keeps_key: bool


class FakeProvider:
    """A destination with effects, faults and a truth. Thread-safe.

    `fault` is one injection for the first call of this instance; `fail_next` and `fail_reads` arm more. `idempotent`: it
    deduplicates on the key, for `key_window` seconds (None: for ever). `sleep` is called where a caller has to wait for it;
    without one, a held answer is a timeout of the caller, at once.
    """

    def __init__(
        self,
        *,
        fault: Fault | str = Fault.NONE,
        seconds: float = 0.0,
        idempotent: bool = False,
        key_window: float | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] | None = None,
        on_commit: Callable[[Committed], None] | None = None,
        committed: tuple[Committed, ...] = (),
    ) -> None:
        self.idempotent = idempotent
        self._window_us = None if key_window is None else round(check_seconds(key_window) * SECOND_US)
        self._clock, self._sleep, self._on_commit = clock or SystemClock(), sleep, on_commit
        self._moved = threading.Condition()
        self._effects: list[Committed] = list(committed)
        self._keys: dict[str, tuple[Committed, int]] = {}
        for one in committed:
            if one.key is not None:
                self._keys[one.key] = (one, one.at_us)
        self._calls: Counter[str] = Counter()
        self._working: Counter[str] = Counter()
        self._pending: list[_Pending] = []
        self._armed: dict[str | None, list[Armed]] = {}
        self._reads: dict[str | None, tuple[ReadFault, float]] = {}
        self.fail_next(fault, seconds=seconds)

    # ------------------------------------------------------------------ faults

    def fail_next(self, fault: Fault | str, *, reference: str | None = None, seconds: float = 0.0, hold_seconds: float = 0.0) -> None:
        """Arm a fault for the next call of `reference`, or for the next call of all. Raises ValueError for no such fault."""
        chosen = Fault(fault)
        armed = Armed(chosen, check_seconds(seconds, chosen), check_seconds(hold_seconds))
        if armed.fault is not Fault.NONE or armed.hold_seconds:
            with self._moved:
                self._armed.setdefault(reference, []).append(armed)

    def fail_reads(self, fault: ReadFault | str, *, reference: str | None = None, seconds: float = 0.0) -> None:
        """Let reads of `reference`, or all reads, fail from now on; `none` ends it."""
        chosen = ReadFault(fault)
        with self._moved:
            self._reads[reference] = (chosen, check_seconds(seconds, chosen))

    # ------------------------------------------------------------------ what a handler calls

    def create(self, request: Mapping[str, Any], *, reference: str, idempotency_key: str | None = None) -> dict[str, Any]:
        """Do the effect and return it. Raises what its fault says; only ProviderRejected and ConnectionRefusedError prove anything."""
        text = canonical_text(dict(request), "request")
        armed = self._receive(reference)
        if armed.plan.answer == "refuse":
            raise ConnectionRefusedError("nothing listens here")
        try:
            if armed.hold_seconds and self._sleep is not None:
                self._sleep(armed.hold_seconds)
            effect, conflict = self._act(armed, text, reference, idempotency_key)
        finally:
            with self._moved:
                self._working[reference] -= 1
                self._moved.notify_all()
        return self._answer(armed, effect, conflict)

    def _receive(self, reference: str) -> Armed:
        with self._moved:
            queue = self._armed.get(reference) or self._armed.get(None) or []
            armed = queue.pop(0) if queue else Armed(Fault.NONE)
            if armed.plan.answer != "refuse":
                self._calls[reference] += 1
                self._working[reference] += 1
                self._moved.notify_all()
            return armed

    def _act(self, armed: Armed, request: str, reference: str, key: str | None) -> tuple[Committed | None, bool]:
        plan = armed.plan
        with self._moved:
            self._bring_due()
            if plan.late:
                due_us = self._now_us() + round(armed.seconds * SECOND_US)
                self._pending.append(_Pending(due_us, reference, request, key, plan.commits, plan.keeps_key))
                return None, False
            if not plan.commits:
                return None, False
            effect = self._commit(request, reference, key, plan.commits, self._now_us(), keeps_key=plan.keeps_key)
            return effect, effect.request != request

    def _answer(self, armed: Armed, effect: Committed | None, conflict: bool) -> dict[str, Any]:
        match armed.plan.answer:
            case "reject":
                raise ProviderRejected("declined; nothing was committed")
            case "cut":
                raise AnswerLost("the connection was cut before an answer")
            case "error":
                raise ProviderError(500, "something broke")
            case "garbled":
                raise AnswerMalformed("the answer is not JSON")
            case "hold":
                if self._sleep is None:
                    raise AnswerLate("no answer came in time")
                self._sleep(armed.seconds)
        if conflict:
            raise ProviderError(409, "this key was used with another request; nothing was committed")
        assert effect is not None
        return effect.shown()

    def _commit(self, request: str, reference: str, key: str | None, times: int, at_us: int, *, keeps_key: bool = True) -> Committed:
        """Commit, or find what the key has committed. `times` above 1 is a provider that breaks its own rule."""
        if self.idempotent and key is not None and times == 1:
            known = self._keys.get(key)
            if known is not None and (self._window_us is None or at_us - known[1] <= self._window_us):
                return known[0]
        for _ in range(times):
            effect = Committed(f"fx_{len(self._effects) + 1:06d}", reference, request, key, at_us)
            if self._on_commit is not None:
                self._on_commit(effect)
            self._effects.append(effect)
        if key is not None and keeps_key:
            self._keys[key] = (effect, at_us)
        self._moved.notify_all()
        return effect

    def _bring_due(self) -> None:
        """Let late commits happen, each at its own time and not at that of whoever asks."""
        now_us = self._now_us()
        due = [one for one in self._pending if one.due_us <= now_us]
        self._pending = [one for one in self._pending if one.due_us > now_us]
        for one in sorted(due):
            self._commit(one.request, one.reference, one.key, one.plan_commits, one.due_us, keeps_key=one.keeps_key)

    # ------------------------------------------------------------------ what a probe calls

    def find(self, reference: str, *, page: int = 1) -> Page:
        """Search by reference, page by page. Raises ConnectionError where reads are unavailable."""
        with self._moved:
            self._bring_due()
            fault, seconds = self._read_fault(reference)
            if fault is ReadFault.UNAVAILABLE:
                raise ConnectionError("reads are unavailable")
            if fault in (ReadFault.FALSE_NEGATIVE, ReadFault.LYING):
                return Page([])
            if fault is ReadFault.PARTIAL_PAGE and page == 1:
                return Page([], 2)
            before_us = self._now_us() - round(seconds * SECOND_US) if fault is ReadFault.STALE else self._now_us()
            if fault is ReadFault.WRONG_IDENTITY:
                return Page([Committed("fx_other", f"other-{reference}", "{}", None, 0).shown()])
            return Page([one.shown() for one in self._effects if one.reference == reference and one.at_us <= before_us])

    def control(self, beside: str = CONTROL_REFERENCE) -> bool:
        """Positive control: find what surely exists through the search that serves `beside`. False: that search is broken."""
        with self._moved:
            fault, _ = self._read_fault(beside)
        if fault is ReadFault.UNAVAILABLE:
            raise ConnectionError("reads are unavailable")
        return fault is not ReadFault.FALSE_NEGATIVE

    def in_flight(self, reference: str) -> int:
        """In-flight fence: how many accepted requests of this reference are undecided. 0: nothing accepted can commit any more."""
        with self._moved:
            self._bring_due()
            if self._read_fault(reference)[0] is ReadFault.UNAVAILABLE:
                raise ConnectionError("reads are unavailable")
            return self._working[reference] + sum(one.reference == reference for one in self._pending)

    def _read_fault(self, reference: str) -> tuple[ReadFault, float]:
        none = (ReadFault.NONE, 0.0)
        own = self._reads.get(reference, none)
        return own if own[0] is not ReadFault.NONE else self._reads.get(None, none)

    # ------------------------------------------------------------------ the truth

    @property
    def effects(self) -> tuple[Committed, ...]:
        """Everything that was really committed, in order."""
        with self._moved:
            self._bring_due()
            return tuple(self._effects)

    def count(self, reference: str | None = None) -> int:
        """Count what was really committed."""
        return sum(reference is None or one.reference == reference for one in self.effects)

    def calls(self, reference: str | None = None) -> int:
        """Count the requests that arrived."""
        with self._moved:
            return self._calls.total() if reference is None else self._calls[reference]

    def calls_by_reference(self) -> dict[str, int]:
        """Count the requests that arrived, by reference."""
        with self._moved:
            return dict(self._calls)

    @property
    def undecided(self) -> int:
        """How many requests may still be committed."""
        with self._moved:
            self._bring_due()
            return self._working.total() + len(self._pending)

    def wait(self, reference: str, what: str, count: int, timeout_seconds: float) -> bool:
        """Block until `count` requests were `received` or effects `committed`; False if time ran out first."""
        with self._moved:
            return self._moved.wait_for(lambda: self._reached(reference, what) >= count, timeout_seconds)

    def _reached(self, reference: str, what: str) -> int:
        if what == "received":
            return self._calls[reference]
        return sum(one.reference == reference for one in self._effects)

    def _now_us(self) -> int:
        return self._clock.now().boot_us
