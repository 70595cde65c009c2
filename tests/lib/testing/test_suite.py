"""The bundled suite: every scenario passes, and fails where the provider is at fault."""

import pytest

from settled.testing import SafetyReport, run_safety_suite
from settled.testing.suite import run_scenarios

# The six of the fault kit's rows and the twelve checks, by the names that the suite gives them.
SIX = {
    "commit, lost acknowledgement": "P67",
    "failure before the commit": "P68",
    "timeout, no probe, no guarantee": "P69",
    "same operation ID, other arguments": "P70",
    "repeat after the ledger was reopened": "P71",
    "provider pending": "P72",
}
TWELVE = (
    "success",
    "rejection before the commit",
    "replay of a confirmed request",
    "eight callers at a time",
    "same key of business, other body",
    "timeout before the commit, provably not sent",
    "timeout after the commit",
    "unknown is not repeated",
    "probe down",
    "unhealthy false negative",
    "wrong reference",
    "later rejection does not erase",
)


@pytest.fixture(scope="module")
def report() -> SafetyReport:
    return run_safety_suite()


@pytest.mark.promise("P66", part="every built-in scenario counts at the provider")
@pytest.mark.promise("P67", "P68", "P69", "P70", "P71", "P72", "D59")
@pytest.mark.xdist_group("suite")
def test_every_scenario_passes_by_the_providers_own_count(report: SafetyReport) -> None:
    assert [(one.name, one.detail) for one in report.checks if not one.passed] == []
    by_name = {one.name: one.facts for one in report.checks}
    assert set(SIX) | set(TWELVE) <= set(by_name) and len(by_name) == len(report.checks)
    assert all(type(facts["committed_effect_count"]) is int for facts in by_name.values())
    assert by_name["commit, lost acknowledgement"]["event_types"] == ["submitted", "dispatched", "raised", "probe_committed"]
    assert by_name["timeout, no probe, no guarantee"]["event_types"] == ["submitted", "dispatched", "timed_out", "quarantined"]
    assert by_name["failure before the commit"]["attempts"] == by_name["later rejection does not erase"]["attempts"] == 2
    assert {name: by_name[name]["calls"] for name in TWELVE} == dict.fromkeys(TWELVE, 1) | {"later rejection does not erase": 2}


@pytest.mark.promise("D60")
@pytest.mark.xdist_group("suite")
def test_the_comparison_counts_both_ways(report: SafetyReport) -> None:
    compared = report.comparison
    assert compared is not None
    assert compared["naive retry"] == {"calls": 2, "charges": 2, "total_cents": 5000, "answered": True}
    assert compared["settled"] == {
        "calls": 1,
        "charges": 1,
        "total_cents": 2500,
        "execution": "UNKNOWN",
        "verification": "CONFIRMED",
        "outcome": "CONFIRMED",
    }
    assert "naive retry" in report.to_text()


@pytest.mark.promise("P66")
@pytest.mark.xdist_group("suite")
def test_a_provider_that_commits_twice_fails_what_reads_confirmed() -> None:
    report = run_scenarios(provider_commits_twice=True, names={"success"})
    (success,) = report.checks
    assert success.facts["status"] == "confirmed" and success.facts["committed_effect_count"] == 2
    assert not success.passed and not report.passed and report.verdict.startswith("UNSAFE")
