"""One payment, one fault, one report: what `settled demo --scenario` plays, in this process and in moments.

The contract declares `network_drain=0`: the provider lives in this process, so nothing of a call can be under way after it. Its
probe knows the provider's search alone, no in-flight fence; that is why `late-commit` needs the horizon that it declares.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from settled.contract import RetryPolicy
from settled.core.evidence import ProbeResult
from settled.core.words import Outcome
from settled.testing.faults import Fault
from settled.testing.payments import reference_of
from settled.testing.scenes import ARGUMENTS, Scene

HORIZON_SECONDS: Final = 60.0
LATE_SECONDS: Final = 45.0
_WAIT_SECONDS: Final = 50.0  # past the late commit and past every backoff
_ASKED_AGAIN: Final = 2


class _Trouble(NamedTuple):
    fault: Fault
    seconds: float = 0.0
    horizon: float = 0.0


_TROUBLES: Final[Mapping[str, _Trouble]] = {
    "none": _Trouble(Fault.NONE),
    "before-commit": _Trouble(Fault.FAIL_BEFORE_COMMIT),
    "after-commit-before-ack": _Trouble(Fault.LOSE_ANSWER),
    "late-commit": _Trouble(Fault.COMMIT_LATE, LATE_SECONDS, HORIZON_SECONDS),
}
SCENARIOS: Final = tuple(_TROUBLES)


def play(name: str, folder: Path, *, twice: bool = False) -> dict[str, Any]:
    """Play one scenario on a ledger in `folder`; return its report."""
    trouble = _TROUBLES[name]
    scene = Scene(folder, broken=twice)
    try:
        effect = scene.declare(
            outcome_probe=_probe(scene), retry=RetryPolicy(max_attempts=2), commit_horizon=trouble.horizon, probe_attempts_max=100
        )
        scene.provider.fail_next(trouble.fault, seconds=trouble.seconds)
        operation = effect.execute(ARGUMENTS)
        for _ in range(_ASKED_AGAIN):
            if operation.settled:
                break
            operation = effect.execute(ARGUMENTS)  # looks first, and goes on only where it may
            scene.clock.advance(_WAIT_SECONDS)
        operation = operation if operation.settled else effect.execute(ARGUMENTS)
        seen = scene.seen(operation)
        effects = [one.shown() for one in scene.provider.effects]
    finally:
        scene.close()
    count = seen["committed_effect_count"]
    confirmed = operation.outcome is Outcome.CONFIRMED
    return {
        "scenario": name,
        "operation_id": seen["operation_id"],
        "status": seen["status"],
        "confirmed": confirmed,
        "attempts": seen["attempts"],
        "committed_effect_count": count,
        "duplicate_effect_detected": count > 1,
        "provider_result": effects[0] if effects else None,
        "event_types": seen["event_types"],
        "passed": confirmed and count == 1 and not operation.in_progress,
    }


def _probe(scene: Scene) -> Callable[[dict[str, Any]], ProbeResult]:
    def look(arguments: dict[str, Any]) -> ProbeResult:
        reference = reference_of(arguments)
        found = scene.provider.find(reference).found
        if found:
            return ProbeResult.committed(reference=reference, provider_operation_id=found[0]["effect_id"], output=found[0])
        return ProbeResult.not_committed(reference=reference, terminal=True, healthy=scene.provider.control())

    return look
