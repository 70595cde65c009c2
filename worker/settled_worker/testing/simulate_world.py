"""What is outside of the host in a simulated run: time, the network, two providers, and the contracts that speak of them.

Promise: everything that happens later happens at a moment that was chosen when it began. The contracts tell the truth: no byte
travels longer than their drain, nothing commits later than their horizon, no read lags more than they say.
"""

import heapq
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from settled.contract import EffectContract, RetryPolicy
from settled.core.evidence import ProbeResult
from settled.core.moment import SECOND_US, Moment
from settled.execution.job import Job, Kind
from settled.testing.clock import VirtualClock
from settled.testing.faults import Fault, ReadFault
from settled.testing.payments import look_for_payment, pay, reference_of, request_of
from settled.testing.provider import FakeProvider, Page

DRAIN_SECONDS: Final = 20
COMMIT_SECONDS: Final = 30
LAG_SECONDS: Final = 15
WINDOW_SECONDS: Final = 240
ALONE_SECONDS: Final = 90  # where one bound stands alone: long enough for something to happen meanwhile
_NEARLY: Final = 0.9  # how much of a declared bound is used


class _Weather(NamedTuple):
    """What may happen to a request and to a read, each as likely as the other. `travel` is a part of what the drain allows.

    `late_seconds`: how late a late commit is, where that is not what the horizon allows. `sleepy`: what often falls asleep, a
    handler before it sends or a probe after it has read.
    """

    travel: tuple[float, ...] = (0.0, 0.0, 0.0, 0.02, 0.15, 1.0)
    faults: tuple[Fault, ...] = (
        Fault.NONE, Fault.NONE, Fault.NONE, Fault.LOSE_ANSWER, Fault.LOSE_ANSWER, Fault.COMMIT_LATE, Fault.FAIL_BEFORE_COMMIT,
        Fault.REJECT, Fault.ERROR_AFTER_COMMIT, Fault.MALFORMED_ANSWER, Fault.REFUSE, Fault.COMMIT_LATE,
    )  # fmt: skip
    reads: tuple[ReadFault, ...] = (
        ReadFault.NONE, ReadFault.NONE, ReadFault.NONE, ReadFault.STALE, ReadFault.STALE, ReadFault.UNAVAILABLE,
        ReadFault.FALSE_NEGATIVE, ReadFault.WRONG_IDENTITY, ReadFault.PARTIAL_PAGE,
    )  # fmt: skip
    late_seconds: float | None = None
    sleepy: Kind | None = None


# Where one bound stands alone, what it is there for happens often.
_WEATHERS: Final[Mapping[str, _Weather]] = {
    "drain_alone": _Weather(travel=(0.0, 1.0), sleepy=Kind.PROBE),
    "horizon_alone": _Weather(faults=(Fault.COMMIT_LATE, Fault.COMMIT_LATE, Fault.FAIL_BEFORE_COMMIT)),
    "lag_alone": _Weather(faults=(Fault.LOSE_ANSWER, Fault.FAIL_BEFORE_COMMIT), reads=(ReadFault.STALE, ReadFault.STALE, ReadFault.NONE)),
    "fence_alone": _Weather(sleepy=Kind.HANDLER),
    "as_read": _Weather(
        faults=(Fault.COMMIT_LATE, Fault.COMMIT_LATE, Fault.FAIL_BEFORE_COMMIT),
        reads=(ReadFault.NONE, ReadFault.NONE, ReadFault.FALSE_NEGATIVE, ReadFault.WRONG_IDENTITY, ReadFault.PARTIAL_PAGE),
        late_seconds=_NEARLY * ALONE_SECONDS,
    ),
    "key_window_thread": _Weather(faults=(Fault.LOSE_ANSWER, Fault.FAIL_BEFORE_COMMIT, Fault.NONE), sleepy=Kind.HANDLER),
}
_ORDINARY: Final = _Weather()


Look = Callable[[Any, Mapping[str, Any]], ProbeResult]


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a finite window in a thread is declared on purpose
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
        terms, weather = self.contracts[job.contract].terms, _WEATHERS.get(job.contract, _ORDINARY)
        fault = Fault.NONE if self.calm else weather.faults[choice % len(weather.faults)]
        if fault is Fault.COMMIT_LATE and not self._late_seconds(job.contract):
            fault = Fault.LOSE_ANSWER
        part = 0.0 if self.calm else weather.travel[choice // len(weather.faults) % len(weather.travel)]
        travel = 0.01 + part * _NEARLY * terms.network_drain_us / SECOND_US
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
        late_seconds = self._late_seconds(one.contract)
        if one in self._undecided and not late:
            self._undecided.remove(one)
        provider.fail_next(one.fault, reference=one.reference, seconds=late_seconds if late else 0.0)
        try:
            shown = provider.create(one.request, reference=one.reference, idempotency_key=one.key)
            one.answer = lambda: shown
        except Exception as error:  # noqa: BLE001 - it is the answer, whatever it is
            one.answer = _raising(error)
        one.done = True
        if late:
            self.later(late_seconds, lambda: self._undecided.remove(one))

    def commits_later_than_declared(self, contract: str) -> bool:
        """Whether its contract promises an earlier end of what is under way than there is: then no bound protects who decides by it."""
        return self._late_seconds(contract) * SECOND_US > self.contracts[contract].terms.commit_horizon_us

    def _late_seconds(self, contract: str) -> float:
        own = _WEATHERS.get(contract, _ORDINARY).late_seconds
        return _NEARLY * self.contracts[contract].terms.commit_horizon_us / SECOND_US if own is None else own

    def falls_asleep(self, job: Job, choice: int) -> bool:
        """Say whether a handler or a probe of this kind falls asleep now."""
        return not self.calm and choice % 2 == 0 and _WEATHERS.get(job.contract, _ORDINARY).sleepy is job.kind

    def troubled_reads(self, contract: str, choice: int) -> None:
        """Let the next reads of a contract's provider be as `choice` says."""
        reads = _WEATHERS.get(contract, _ORDINARY).reads
        fault = reads[choice % len(reads)]
        if self.calm and fault is not ReadFault.STALE:  # a declared lag is no fault, and does not end with them
            fault = ReadFault.NONE
        lag_us = self.contracts[contract].terms.read_lag_us
        if fault is ReadFault.STALE and not lag_us:
            fault = ReadFault.NONE
        self.provider_of(contract).fail_reads(fault, seconds=_NEARLY * lag_us / SECOND_US if fault is ReadFault.STALE else 0.0)

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


class _Blind(_Wire):
    """A provider that does not say what it still works on: there the declared horizon is all that protects an absence."""

    def in_flight(self, reference: str) -> int:
        return 0


def _as_read(wire: _Wire, arguments: Mapping[str, Any]) -> ProbeResult:
    """Be a probe that passes on what it read and judges nothing: what that is worth is the worker's to say."""
    reference = reference_of(arguments)
    page = wire.find(reference)
    if page.found:
        return ProbeResult.committed(reference=page.found[0]["reference"], provider_operation_id=page.found[0]["effect_id"])
    healthy = page.more is None and wire.control(reference)
    return ProbeResult.not_committed(reference=reference, terminal=not wire.in_flight(reference), healthy=healthy)


def _raising(error: Exception) -> Callable[[], dict[str, Any]]:
    def answer() -> dict[str, Any]:
        raise error

    return answer


def _contracts(world: World) -> list[EffectContract]:
    """With a key, a probe, both and neither; in processes and in threads; some that announce their sending.

    A rule that is broken shows only where no other one covers it. So there are contracts that rest on one bound or on the fence
    alone, one whose probe judges nothing and whose provider says itself that it is not done, and one whose finite window no thread
    may trust.
    """
    key: dict[str, Any] = {
        "provider_idempotency_key": lambda a: f"key:{a['payment']}",
        "provider_idempotency_guaranteed": True,
        "key_margin": COMMIT_SECONDS + 10,
    }
    window: dict[str, Any] = {"provider_idempotency_window": WINDOW_SECONDS}
    announced: dict[str, Any] = {"announces_sending": True}
    none: dict[str, Any] = {"network_drain": 1, "commit_horizon": 0, "read_lag": 0, "probe_timeout": 2 * ALONE_SECONDS}
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
        _contract(world, "key_window_thread", "thread", probe=False, **key, **window),
        _contract(world, "drain_alone", "process", **(none | {"network_drain": ALONE_SECONDS})),
        _contract(world, "horizon_alone", "process", wire=_Blind, **(none | {"commit_horizon": ALONE_SECONDS})),
        _contract(world, "lag_alone", "process", **(none | {"read_lag": ALONE_SECONDS})),
        _contract(world, "fence_alone", "thread", **none),
        _contract(world, "as_read", "process", look=_as_read, **none),
    ]


def _contract(
    world: World, name: str, isolation: str, *, probe: bool = True, wire: type[_Wire] = _Wire, look: Look = look_for_payment, **terms: Any
) -> EffectContract:
    its = wire(world, name)
    bounds = {"network_drain": DRAIN_SECONDS, "commit_horizon": COMMIT_SECONDS, "read_lag": LAG_SECONDS}
    return EffectContract(
        name=name,
        isolation=isolation,
        operation_id=lambda a: f"payment:{a['payment']}",
        provider_reference=reference_of,
        handler=lambda arguments, idempotency_key: pay(its, arguments, idempotency_key),
        outcome_probe=(lambda arguments: look(its, arguments)) if probe else None,
        timeout=10,
        kill_grace=1,
        unknown_age_max=1800,
        retry=RetryPolicy(max_attempts=3, not_sent_attempts_max=5),
        **(bounds | terms),
    )
