"""`settled demo --scenario`: one payment, one fault, one report whose facts are fixed."""

import json
from pathlib import Path

import pytest

from settled_cli.demo.scenario import SCENARIOS, play
from tests.cli.conftest import Terminal

FIELDS = {
    "scenario",
    "operation_id",
    "status",
    "confirmed",
    "attempts",
    "committed_effect_count",
    "duplicate_effect_detected",
    "provider_result",
    "event_types",
    "passed",
}
STORIES = {
    "none": (1, ["submitted", "dispatched", "returned"]),
    "before-commit": (2, ["submitted", "dispatched", "raised", "probe_absent", "dispatched", "returned"]),
    "after-commit-before-ack": (1, ["submitted", "dispatched", "raised", "probe_committed"]),
    "late-commit": (1, ["submitted", "dispatched", "raised", "probe_unknown", "probe_committed"]),
}


@pytest.mark.promise("P56")
@pytest.mark.parametrize("scenario", STORIES)
def test_a_scenario_has_its_story_and_one_effect(tmp_path: Path, scenario: str) -> None:
    report = play(scenario, tmp_path)
    assert set(report) == FIELDS
    assert (report["attempts"], report["event_types"]) == STORIES[scenario]
    assert (report["status"], report["confirmed"], report["committed_effect_count"]) == ("confirmed", True, 1)
    assert report["duplicate_effect_detected"] is False and report["passed"] is True
    assert report["provider_result"]["reference"] == report["operation_id"]


@pytest.mark.promise("P57", part="one scenario at a provider that commits twice")
@pytest.mark.parametrize("scenario", STORIES)
def test_a_provider_that_commits_twice_fails_every_scenario(tmp_path: Path, scenario: str) -> None:
    report = play(scenario, tmp_path, twice=True)
    assert (report["confirmed"], report["committed_effect_count"]) == (True, 2)
    assert report["duplicate_effect_detected"] is True and report["passed"] is False


@pytest.mark.promise("P55", "P57", part="a single report: its output, its file, its exit code")
def test_the_command_prints_the_report_sorted_writes_it_and_ends_by_its_verdict(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "made" / "here" / "report.json"
    ended = terminal("-o", "json", "demo", "--scenario", "after-commit-before-ack", "--output", str(file))
    assert ended.code == 0, ended
    assert list(json.loads(ended.out)) == sorted(FIELDS) and json.loads(file.read_text()) == json.loads(ended.out)
    broken = terminal("-o", "json", "demo", "--scenario", "none", "--provider-commits-twice")
    assert (broken.code, json.loads(broken.out)["duplicate_effect_detected"]) == (1, True)
    assert terminal("demo", "--scenario", "nonsense").code == 2
    told = terminal("demo", "--help").out
    assert all(name in told for name in SCENARIOS) and set(SCENARIOS) == set(STORIES)
