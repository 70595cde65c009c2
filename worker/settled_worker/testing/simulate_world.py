"""What is outside of the host in a simulated run: time, the network, two providers, and the contracts that speak of them.

Promise: everything that happens later happens at a moment that was chosen when it began. The contracts tell the truth: no byte
travels longer than their drain, nothing commits later than their horizon, no read lags more than they say.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from settled.contract import EffectContract, RetryPolicy
from settled.core.moment import SECOND_US, Moment
from settled.execution.job import Job
from settled.testing.clock import VirtualClock
from settled.testing.faults import Fault, ReadFault
from settled.testing.payments import look_for_payment, pay, reference_of, request_of
from settled.testing.provider import FakeProvider, Page

DRAIN_SECONDS: Final = 20
COMMIT_SECONDS: Final = 30
LAG_SECONDS: Final = 15
WINDOW_SECONDS: Final = 240
_LATE_SECONDS: Final = COMMIT_SECONDS * 0.9
_TRAVEL_SECONDS: Final = (0.01, 0.01, 0.01, 0.5, 3.0, 19.0)
_FAULTS: Final = (
    Fault.NONE, Fault.NONE, Fault.NONE, Fault.LOSE_ANSWER, Fault.LOSE_ANSWER, Fault.COMMIT_LATE, Fault.FAIL_BEFORE_COMMIT,
    Fault.REJECT, Fault.ERROR_AFTER_COMMIT, Fault.MALFORMED_ANSWER, Fault.REFUSE, Fault.COMMIT_LATE,
)  # fmt: skip
_READS: Final = (
    ReadFault.NONE, ReadFault.NONE, ReadFault.NONE, ReadFault.STALE, ReadFault.STALE, ReadFault.UNAVAILABLE,
    ReadFault.FALSE_NEGATIVE, ReadFault.WRONG_IDENTITY, ReadFault.PARTIAL_PAGE,
)  # fmt: skip


class TrueClock:
    """The time of the world, which no reboot of the host resets. Implements settled.clock.Clock for the providers."""

    def __init__(self) -> None:
        self.us = 10**12

    def now(self) -> Moment:
        """Return this instant."""
        return Moment(self.us, self.us, "world")

    def monotonic_us(self) -> int:
        """Return the time that has passed."""
        return self.us


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """One request on its way: `answer` is called once it is there, `done` says that it is."""

    contract: str
    reference: str
    key: str | None
    request: Mapping[str, Any]
    fault: Fault
    done: bool = False
    answer: Callable[[], dict[str, Any]] | None = None


@dataclass(slots=True)
class World:
    """Time, network and providers. `clock` is the host's."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    true: TrueClock = field(default_factory=TrueClock)
    calm: bool = False  # faults are over
    on_send: Callable[[Job], None] | None = None
    serving: Exchange | None = None  # whose answer the handler that is called now receives
    keyed: FakeProvider = field(init=False)
    plain: FakeProvider = field(init=False)
    contracts: dict[str, EffectContract] = field(init=False)
    _forever: FakeProvider = field(init=False)
    _later: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _undecided: list[Exchange] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        """Make the providers and the contracts."""
        self.keyed = FakeProvider(idempotent=True, key_window=WINDOW_SECONDS, clock=self.true)
        self.plain = FakeProvider(clock=self.true)
        self._forever = FakeProvider(idempotent=True, clock=self.true)
        self.contracts = {one.name: one for one in _contracts(self)}

    # ------------------------------------------------------------------ time

    def advance(self, seconds: float, due: Callable[[], int | None], act: Callable[[], None], *, awake: bool = True) -> None:
        """Let time pass, and what falls due meanwhile happen at its time. `due` tells in how many microseconds the host must `act`."""
        left = round(seconds * SECOND_US)
        while True:
            arrives = self._later[0][0] - self.true.us if self._later else left
            acts = due() if awake else None
            pause = max(0, min(left, arrives, left if acts is None else acts))
            self.true.us += pause
            (self.clock.advance if awake else self.clock.suspend)(pause / SECOND_US)
            left -= pause
            happened = self._arrive()
            if awake and acts is not None and acts <= pause:
                act()
                happened = True
            if left <= 0 and not happened:
                return

    def _arrive(self) -> bool:
        if not self._later or self._later[0][0] > self.true.us:
            return False
        heapq.heappop(self._later)[2]()
        return True

    def reboot(self, away_seconds: float = 30.0) -> None:
        """Start the host anew; the world goes on meanwhile."""
        self.advance(away_seconds, lambda: None, lambda: None, awake=False)
        self.clock.reboot(away_seconds=0)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Let something happen then."""
        self._number += 1
        heapq.heappush(self._later, (self.true.us + round(seconds * SECOND_US), self._number, call))

    # ------------------------------------------------------------------ the providers

    def provider_of(self, contract: str) -> FakeProvider:
        """Return the destination of a contract."""
        terms = self.contracts[contract].terms
        if not terms.key_guaranteed:
            return self.plain
        return self._forever if terms.window_us is None else self.keyed

    def count(self, contract: str, reference: str) -> int:
        """Count the effects of one operation: the truth."""
        return self.provider_of(contract).count(reference)

    def undecided(self, contract: str, reference: str) -> int:
        """Count its requests that travel or may still be committed."""
        return sum((one.contract, one.reference) == (contract, reference) for one in self._undecided)

    def send(self, job: Job, arguments: Mapping[str, Any], choice: int) -> Exchange:
        """Let a request leave. It arrives, is worked on, and is answered, each at its time."""
        fault = Fault.NONE if self.calm else _FAULTS[choice % len(_FAULTS)]
        travel = 0.01 if self.calm else _TRAVEL_SECONDS[choice // len(_FAULTS) % len(_TRAVEL_SECONDS)]
        what: dict[str, Any] = {"reference": reference_of(arguments), "key": job.idempotency_key, "request": request_of(arguments)}
        one = Exchange(contract=job.contract, fault=fault, **what)
        if fault is Fault.REFUSE:
            self._serve(one)  # nothing leaves
            return one
        if self.on_send is not None:
            self.on_send(job)
        self._undecided.append(one)
        self.later(travel, lambda: self._serve(one))
        return one

    def _serve(self, one: Exchange) -> None:
        provider, late = self.provider_of(one.contract), one.fault is Fault.COMMIT_LATE
        if one in self._undecided and not late:
            self._undecided.remove(one)
        provider.fail_next(one.fault, reference=one.reference, seconds=_LATE_SECONDS if late else 0.0)
        try:
            shown = provider.create(one.request, reference=one.reference, idempotency_key=one.key)
            one.answer = lambda: shown
        except Exception as error:  # noqa: BLE001 - it is the answer, whatever it is
            one.answer = _raising(error)
        one.done = True
        if late:
            self.later(_LATE_SECONDS, lambda: self._decide(one))

    def _decide(self, one: Exchange) -> None:
        """Let a late commit happen now: the provider would do it only when it is next asked, by the time that it is then."""
        self.provider_of(one.contract).count()
        self._undecided.remove(one)

    def troubled_reads(self, contract: str, choice: int) -> None:
        """Let the next reads of a contract's provider be as `choice` says."""
        fault = ReadFault.NONE if self.calm else _READS[choice % len(_READS)]
        self.provider_of(contract).fail_reads(fault, seconds=LAG_SECONDS * 0.9 if fault is ReadFault.STALE else 0.0)

    # ------------------------------------------------------------------ what handlers and probes of the contracts call

    def create(self, request: Mapping[str, Any], *, reference: str, idempotency_key: str | None = None) -> dict[str, Any]:
        """Give the handler that is called now the answer that came for it."""
        assert self.serving is not None and self.serving.answer is not None
        return self.serving.answer()


@dataclass(frozen=True, slots=True)
class _Wire:
    """The provider as a handler or a probe of one contract sees it."""

    world: World
    contract: str

    def create(self, request: Mapping[str, Any], *, reference: str, idempotency_key: str | None = None) -> dict[str, Any]:
        return self.world.create(request, reference=reference, idempotency_key=idempotency_key)

    def find(self, reference: str, *, page: int = 1) -> Page:
        return self.world.provider_of(self.contract).find(reference, page=page)

    def control(self, beside: str) -> bool:
        return self.world.provider_of(self.contract).control(beside)

    def in_flight(self, reference: str) -> int:
        return self.world.provider_of(self.contract).in_flight(reference)


def _raising(error: Exception) -> Callable[[], dict[str, Any]]:
    def answer() -> dict[str, Any]:
        raise error

    return answer


def _contracts(world: World) -> list[EffectContract]:
    """With a key, a probe, both and neither; in processes and in threads; one that announces its sending."""
    key: dict[str, Any] = {
        "provider_idempotency_key": lambda a: f"key:{a['payment']}",
        "provider_idempotency_guaranteed": True,
        "key_margin": COMMIT_SECONDS + 10,
    }
    window: dict[str, Any] = {"provider_idempotency_window": WINDOW_SECONDS}
    announced: dict[str, Any] = {"announces_sending": True}
    return [
        _contract(world, "none_process", "process", probe=False),
        _contract(world, "none_thread", "thread", probe=False),
        _contract(world, "none_announced", "process", probe=False, **announced),
        _contract(world, "probe_process", "process"),
        _contract(world, "probe_thread", "thread"),
        _contract(world, "probe_announced", "process", **announced),
        _contract(world, "key_process", "process", probe=False, **key, **window),
        _contract(world, "key_thread", "thread", probe=False, **key),
        _contract(world, "both_process", "process", **key, **window),
        _contract(world, "both_thread", "thread", **key),
    ]


def _contract(world: World, name: str, isolation: str, *, probe: bool = True, **terms: Any) -> EffectContract:
    wire = _Wire(world, name)
    return EffectContract(
        name=name,
        isolation=isolation,
        operation_id=lambda a: f"payment:{a['payment']}",
        provider_reference=reference_of,
        handler=lambda arguments, idempotency_key: pay(wire, arguments, idempotency_key),
        outcome_probe=(lambda arguments: look_for_payment(wire, arguments)) if probe else None,
        timeout=10,
        kill_grace=1,
        network_drain=DRAIN_SECONDS,
        commit_horizon=COMMIT_SECONDS,
        read_lag=LAG_SECONDS,
        unknown_age_max=1800,
        retry=RetryPolicy(max_attempts=3, not_sent_attempts_max=5),
        **terms,
    )
