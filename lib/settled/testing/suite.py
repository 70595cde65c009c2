"""The bundled safety suite: every scenario on a ledger of its own, and what naive retry does in the same place.

Promise: each check compares what settled says with what the provider counted; needs no network, no account and no waiting.
"""

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from settled.core.text import one_line, safe_str
from settled.testing.faults import Fault
from settled.testing.provider import AnswerLost, FakeProvider
from settled.testing.report import SafetyCheck, SafetyReport
from settled.testing.scenarios import SCENARIOS, lost_acknowledgement
from settled.testing.scenes import ARGUMENTS, Scenario, Scene

NAME: Final = "settled: bundled safety suite"
_TRIES_MAX: Final = 3
_DETAIL_MAX: Final = 500


def run_safety_suite() -> SafetyReport:
    """Run every scenario and the comparison with naive retry."""
    return run_scenarios()


def run_scenarios(*, provider_commits_twice: bool = False, names: Collection[str] | None = None) -> SafetyReport:
    """`run_safety_suite`, or the scenarios of these names only. A provider that is broken itself must fail the report by its count."""
    chosen = [one for one in SCENARIOS if names is None or one.name in names]
    checks = tuple(_check(one, broken=provider_commits_twice) for one in chosen)
    return SafetyReport(name=NAME, checks=checks, comparison=compare_with_naive_retry())


def _check(scenario: Scenario, *, broken: bool) -> SafetyCheck:
    try:
        seen = _play(scenario, broken=broken)
    except Exception as error:  # noqa: BLE001 - a scenario that could not be played has not passed
        detail = one_line(f"{type(error).__name__}: {safe_str(error)}", _DETAIL_MAX)
        return SafetyCheck(name=scenario.name, passed=False, detail=f"could not be played: {detail}")
    differs = scenario.differs(seen)
    return SafetyCheck(name=scenario.name, passed=not differs, detail=differs, facts=dict(seen))


def _play(scenario: Scenario, *, broken: bool = False) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="settled-suite-") as folder:
        scene = Scene(Path(folder), broken=broken)
        try:
            return scenario.run(scene)
        finally:
            scene.close()


def compare_with_naive_retry() -> dict[str, Any]:
    """Play one timeout after the commit both ways, and return what each counted."""
    seen = _play(Scenario("comparison", lost_acknowledgement, {}))
    amount = int(ARGUMENTS["amount_cents"])  # type: ignore[call-overload]
    return {
        "name": f"timeout after the commit, {amount} cents",
        "naive retry": _retry_naively(amount),
        "settled": {
            "calls": seen["calls"],
            "charges": seen["committed_effect_count"],
            "total_cents": seen["committed_effect_count"] * amount,
            "execution": seen["execution"],
            "verification": seen["verification"],
            "outcome": seen["outcome"],
        },
    }


def _retry_naively(amount_cents: int) -> dict[str, Any]:
    provider = FakeProvider(fault=Fault.LOSE_ANSWER)
    answered = False
    for _ in range(_TRIES_MAX):
        try:
            provider.create({"amount_cents": amount_cents}, reference="naive")
            answered = True
            break
        except AnswerLost:
            continue
    return {"calls": provider.calls(), "charges": provider.count(), "total_cents": provider.count() * amount_cents, "answered": answered}
