"""The scenarios of the bundled suite: each is a few calls at a provider that fails in one way, and what must be seen then."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from settled.contract import RetryPolicy
from settled.core.errors import OperationConflictError
from settled.core.words import EventType, Outcome, Reason, Status
from settled.effect import Effect
from settled.operation import Operation
from settled.testing.faults import Fault, ReadFault
from settled.testing.scenes import ARGUMENTS, Scenario, Scene

Seen = dict[str, Any]
GUARANTEED: Final[Seen] = {"provider_idempotency_key": lambda a: f"key:{a['payment']}", "provider_idempotency_guaranteed": True}
CROWD: Final = 8
_BACKOFF_SECONDS: Final = 30.0


def _pay(effect: Effect, **changed: Any) -> Operation:
    return effect.execute({**ARGUMENTS, **changed})


def _lost(scene: Scene, fault: Fault = Fault.LOSE_ANSWER, *, seconds: float = 0.0, **terms: Any) -> Effect:
    """Pay once, with one fault."""
    effect = scene.declare(**terms)
    scene.provider.fail_next(fault, seconds=seconds)
    _pay(effect)
    return effect


def _again(scene: Scene, effect: Effect) -> Seen:
    """Ask once more, which looks with the probe, and once more after every wait is over."""
    _pay(effect)
    scene.clock.advance(_BACKOFF_SECONDS)
    return scene.seen(_pay(effect))


def success(scene: Scene) -> Seen:
    return scene.seen(_pay(scene.declare()))


def rejection(scene: Scene) -> Seen:
    return scene.seen(_pay(_lost(scene, Fault.REJECT)))


def replay(scene: Scene) -> Seen:
    effect = scene.declare()
    first, second = _pay(effect), _pay(effect)
    return scene.seen(second, created=second.created, same_output=first.output == second.output)


def reopened(scene: Scene) -> Seen:
    first = _pay(scene.declare())
    second = _pay(scene.opened())
    return scene.seen(second, created=second.created, same_output=first.output == second.output)


def crowd(scene: Scene) -> Seen:
    effect = scene.declare()
    with ThreadPoolExecutor(CROWD) as pool:
        list(pool.map(lambda _: _pay(effect), range(CROWD)))
    return scene.seen(_pay(effect))


def other_body(scene: Scene) -> Seen:
    effect = scene.declare()
    paid = _pay(effect)
    try:
        _pay(effect, amount_cents=1)
        differs = None
    except OperationConflictError as conflict:
        differs = conflict.differs
    return scene.seen(paid, differs=differs)


def lost_acknowledgement(scene: Scene) -> Seen:
    return _again(scene, _lost(scene))


def fails_before_commit(scene: Scene) -> Seen:
    return _again(scene, _lost(scene, Fault.FAIL_BEFORE_COMMIT, retry=RetryPolicy(max_attempts=2)))


def never_sent(scene: Scene) -> Seen:
    return _again(scene, _lost(scene, Fault.REFUSE))


def times_out_without_a_probe(scene: Scene) -> Seen:
    effect = _lost(scene, Fault.HANG, seconds=60.0, outcome_probe=None, timeout=0.3)
    effect.submit(ARGUMENTS)
    return scene.seen(_pay(scene.opened()))


def pending(scene: Scene) -> Seen:
    return scene.seen(_pay(_lost(scene, Fault.COMMIT_LATE, seconds=3600.0)))


def unknown_is_not_repeated(scene: Scene) -> Seen:
    return _again(scene, _lost(scene, outcome_probe=None))


def _with_reads(fault: ReadFault) -> Any:
    def run(scene: Scene) -> Seen:
        effect = _lost(scene)
        scene.provider.fail_reads(fault)
        return _again(scene, effect)

    return run


def later_rejection(scene: Scene) -> Seen:
    effect = _lost(scene, idempotent=True, outcome_probe=None, **GUARANTEED)
    scene.provider.fail_next(Fault.REJECT)
    scene.clock.advance(_BACKOFF_SECONDS)
    return scene.seen(_pay(effect))


def keyed_retry(scene: Scene) -> Seen:
    effect = _lost(scene, idempotent=True, outcome_probe=None, **GUARANTEED)
    return _again(scene, effect)


def late_commit(scene: Scene) -> Seen:
    effect = _lost(scene, Fault.COMMIT_LATE, seconds=20.0, commit_horizon=25.0)
    first = _pay(effect)
    scene.clock.advance(_BACKOFF_SECONDS)
    return scene.seen(_pay(effect), status_before=first.status.value)


def stale_read(scene: Scene) -> Seen:
    effect = _lost(scene, read_lag=25.0)
    scene.provider.fail_reads(ReadFault.STALE, seconds=20.0)
    first = _pay(effect)
    scene.clock.advance(_BACKOFF_SECONDS)
    return scene.seen(_pay(effect), status_before=first.status.value)


def _after(fault: Fault) -> Any:
    return lambda scene: _again(scene, _lost(scene, fault))


_ONCE: Final[Seen] = {"calls": 1, "committed_effect_count": 1}
_CONFIRMED: Final[Seen] = {"status": Status.CONFIRMED.value, "outcome": Outcome.CONFIRMED.value, **_ONCE}
_VERIFIED: Final[Seen] = {**_CONFIRMED, "execution": Outcome.UNKNOWN.value, "verification": Outcome.CONFIRMED.value}
_UNKNOWN: Final[Seen] = {"outcome": Outcome.UNKNOWN.value, "attempts": 1, **_ONCE}
_TIMED_OUT: Final = [EventType.SUBMITTED, EventType.DISPATCHED, EventType.TIMED_OUT, EventType.QUARANTINED]

SCENARIOS: Final = (
    # what a person expects of every day
    Scenario("success", success, _CONFIRMED | {"attempts": 1}),
    Scenario(
        "rejection before the commit",
        rejection,
        {"status": Status.REJECTED.value, "outcome": "FAILED", "calls": 1, "committed_effect_count": 0},
    ),
    Scenario("replay of a confirmed request", replay, _CONFIRMED | {"created": False, "same_output": True}),
    Scenario("repeat after the ledger was reopened", reopened, _CONFIRMED | {"created": False, "same_output": True}),
    Scenario("eight callers at a time", crowd, _CONFIRMED | {"attempts": 1}),
    Scenario("same key of business, other body", other_body, _CONFIRMED | {"differs": "request"}),
    Scenario("same operation ID, other arguments", other_body, _CONFIRMED | {"differs": "request", "attempts": 1}),
    # the answer is lost
    Scenario("commit, lost acknowledgement", lost_acknowledgement, _VERIFIED | {"attempts": 1}),
    Scenario("timeout after the commit", _after(Fault.LOSE_ANSWER), _VERIFIED | {"attempts": 1}),
    Scenario("error 500 after the commit", _after(Fault.ERROR_AFTER_COMMIT), _VERIFIED | {"attempts": 1}),
    Scenario("answer that cannot be read", _after(Fault.MALFORMED_ANSWER), _VERIFIED | {"attempts": 1}),
    # nothing was done
    Scenario(
        "failure before the commit",
        fails_before_commit,
        {"status": Status.CONFIRMED.value, "attempts": 2, "calls": 2, "committed_effect_count": 1},
    ),
    Scenario(
        "timeout before the commit, provably not sent",
        never_sent,
        {"status": Status.CONFIRMED.value, "attempts": 2, "calls": 1, "committed_effect_count": 1},
    ),
    # nobody can say
    Scenario(
        "timeout, no probe, no guarantee",
        times_out_without_a_probe,
        _UNKNOWN
        | {"status": Status.QUARANTINED.value, "reason": Reason.NO_PROBE.value, "event_types": [one.value for one in _TIMED_OUT]},
    ),
    Scenario("unknown is not repeated", unknown_is_not_repeated, _UNKNOWN),
    Scenario("provider pending", pending, {"status": Status.OUTCOME_UNKNOWN.value, "calls": 1, "committed_effect_count": 0}),
    Scenario("probe down", _with_reads(ReadFault.UNAVAILABLE), _UNKNOWN),
    Scenario("unhealthy false negative", _with_reads(ReadFault.FALSE_NEGATIVE), _UNKNOWN),
    Scenario("wrong reference", _with_reads(ReadFault.WRONG_IDENTITY), _UNKNOWN),
    Scenario(
        "later rejection does not erase", later_rejection, {"outcome": "UNKNOWN", "attempts": 2, "calls": 2, "committed_effect_count": 1}
    ),
    # time
    Scenario("late commit within the horizon", late_commit, _VERIFIED | {"attempts": 1, "status_before": Status.OUTCOME_UNKNOWN.value}),
    Scenario("stale read within the read lag", stale_read, _VERIFIED | {"attempts": 1, "status_before": Status.OUTCOME_UNKNOWN.value}),
    Scenario("empty first page", _with_reads(ReadFault.PARTIAL_PAGE), _VERIFIED | {"attempts": 1}),
    Scenario(
        "repeat under a key that the provider honours",
        keyed_retry,
        {"status": Status.CONFIRMED.value, "attempts": 2, "calls": 2, "committed_effect_count": 1},
    ),
)
