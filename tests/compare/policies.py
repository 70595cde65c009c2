"""Where safety comes from: six policies against five faults, over seeded episodes in virtual time, counted at the destination.

The first three are the loops that people write. The last three are settled's own worker, step by step, over a real ledger; only the
time is not real. Each episode is one payment with its own fault and its own seeded waits.
"""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from settled import App
from settled.core.canonical import canonical_text
from settled.core.words import NextAction
from settled.testing.clock import MovableClock
from settled.testing.faults import Fault, ReadFault
from settled.testing.payments import payment_contract, reference_of, request_of
from settled.testing.provider import FakeProvider
from settled_worker.testing.handworker import HandWorker

ATTEMPTS: Final = 5
LATE_SECONDS: Final = (1, 100)
LAG_SECONDS: Final = (1, 60)
WINDOW_SECONDS: Final = 60.0
FIRST_WAIT_SECONDS: Final = (1, 10)
STEP_SECONDS: Final = 10.0
END_SECONDS: Final = 2000.0

FAULTS: Final = {
    "before commit": "the connection is cut; nothing was committed",
    "lost answer": "committed, and the connection is cut",
    "late commit": f"the connection is cut; committed {LATE_SECONDS[0]} to {LATE_SECONDS[1]} seconds later",
    "lagging read": f"committed, the answer is lost, and reads are {LAG_SECONDS[0]} to {LAG_SECONDS[1]} seconds old",
    "expired key": f"committed, the answer is lost, and nothing is tried again before the key's window of {WINDOW_SECONDS:.0f} s is over",
}


class Came(NamedTuple):
    """What came of some episodes: how many made two effects, none, and how many were left to a person."""

    policy: str
    fault: str
    episodes: int
    duplicates: int
    omissions: int
    people: int


class Episode(NamedTuple):
    arguments: dict[str, Any]
    first_wait: float
    fault: str
    seconds: float


def episodes(fault: str, count: int, seed: int) -> list[Episode]:
    """Draw the episodes of one fault: the same for every policy."""
    draw = random.Random(f"{seed} {fault}")
    span = LATE_SECONDS if fault == "late commit" else LAG_SECONDS
    wait = (WINDOW_SECONDS + 1, 2 * WINDOW_SECONDS) if fault == "expired key" else FIRST_WAIT_SECONDS
    return [
        Episode({"payment": number, "amount_cents": 4200, "currency": "EUR"}, draw.uniform(*wait), fault, draw.uniform(*span))
        for number in range(count)
    ]


def arm(provider: FakeProvider, one: Episode) -> None:
    """Let the first call of this episode fail, and its reads lag."""
    reference = reference_of(one.arguments)
    match one.fault:
        case "before commit":
            provider.fail_next(Fault.FAIL_BEFORE_COMMIT, reference=reference)
        case "late commit":
            provider.fail_next(Fault.COMMIT_LATE, reference=reference, seconds=one.seconds)
        case other:
            provider.fail_next(Fault.LOSE_ANSWER, reference=reference)
            if other == "lagging read":
                provider.fail_reads(ReadFault.STALE, reference=reference, seconds=one.seconds)


# ------------------------------------------------------------------ the loops that people write


def _loop(one: Episode, provider: FakeProvider, clock: MovableClock, *, key: bool = False, verifies: bool = False) -> bool:
    """Try, and try again after a growing wait; return whether it ended well."""
    reference, wait = reference_of(one.arguments), one.first_wait
    for attempt in range(ATTEMPTS):
        if attempt:
            clock.advance(wait)
            wait *= 2
            if verifies and any(found["reference"] == reference for found in provider.find(reference).found):
                return True
        try:
            provider.create(request_of(one.arguments), reference=reference, idempotency_key=f"key:{reference}" if key else None)
        except (OSError, ValueError):
            continue
        return True
    return False


def by_a_loop(policy: str, fault: str, drawn: list[Episode], **how: bool) -> Came:
    """Play each episode with a clock and a provider of its own."""
    duplicates = omissions = 0
    for one in drawn:
        clock = MovableClock()
        provider = FakeProvider(clock=clock, idempotent=how.get("key", False), key_window=WINDOW_SECONDS if how.get("key") else None)
        arm(provider, one)
        _loop(one, provider, clock, **how)
        clock.advance(END_SECONDS)
        count = _effects(provider, one)
        duplicates, omissions = duplicates + (count > 1), omissions + (count == 0)
    return Came(policy, fault, len(drawn), duplicates, omissions, 0)


# ------------------------------------------------------------------ settled


def by_settled(policy: str, fault: str, drawn: list[Episode], *, key: bool = False, probe: bool = False) -> Came:
    """Play all episodes beside each other on one ledger; the contract declares what is true of the provider, and nothing more."""
    clock = MovableClock()
    provider = FakeProvider(clock=clock, idempotent=key, key_window=WINDOW_SECONDS if key else None)
    terms: dict[str, Any] = {"commit_horizon": LATE_SECONDS[1], "read_lag": LAG_SECONDS[1]}
    if key:
        terms |= {
            "provider_idempotency_key": lambda a: f"key:{reference_of(a)}", "provider_idempotency_guaranteed": True,
            "provider_idempotency_window": WINDOW_SECONDS, "key_margin": 0,
        }  # fmt: skip
    if not probe:
        terms["outcome_probe"] = None
    with tempfile.TemporaryDirectory() as folder:
        app = App(Path(folder) / "settled.db", clock=clock)
        app.create_database()
        effect = app.register(payment_contract(provider, **terms))
        for one in drawn:
            arm(provider, one)
        names = [effect.submit(one.arguments).operation_id for one in drawn]
        with HandWorker(app, slots=len(drawn)) as worker:
            waiting = set(names)
            for _ in range(round(END_SECONDS / STEP_SECONDS)):
                while worker.turn():
                    pass
                for sweep in ("leases", "reconcile", "escalate"):
                    worker.sweep(sweep)
                waiting = {name for name in waiting if not _has_ended(app, name)}
                if not waiting:
                    break
                clock.advance(STEP_SECONDS)
        clock.advance(END_SECONDS)
        counts = [_effects(provider, one) for one in drawn]
        people = sum(app.get(name).next_action is NextAction.ASK_HUMAN for name in names)
        left = [app.get(name).next_action is NextAction.ASK_HUMAN for name in names]
    omissions = sum(count == 0 and not asked for count, asked in zip(counts, left, strict=True))
    return Came(policy, fault, len(drawn), sum(count > 1 for count in counts), omissions, people)


def _has_ended(app: App, name: str) -> bool:
    operation = app.get(name)
    return operation.settled or operation.next_action is NextAction.ASK_HUMAN


def _effects(provider: FakeProvider, one: Episode) -> int:
    text = canonical_text(request_of(one.arguments), "request")
    return sum(effect.reference == reference_of(one.arguments) and effect.request == text for effect in provider.effects)


Player = Callable[[str, str, list[Episode]], Came]
POLICIES: Final[dict[str, Player]] = {
    "naive retry": by_a_loop,
    "verify, then retry": lambda *given: by_a_loop(*given, verifies=True),
    "provider key": lambda *given: by_a_loop(*given, key=True),
    "settled, neither": by_settled,
    "settled, probe": lambda *given: by_settled(*given, probe=True),
    "settled, key and probe": lambda *given: by_settled(*given, key=True, probe=True),
}


def play(count: int, seed: int, told: Callable[[], None] = lambda: None) -> list[Came]:
    """Play every policy against every fault; the same seed gives the same table."""
    table = []
    for policy, player in POLICIES.items():
        for fault in FAULTS:
            table.append(player(policy, fault, episodes(fault, count, seed)))
            told()
    return table
