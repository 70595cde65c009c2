"""`settled demo`: the whole story, and that its verdict is counted."""

import json
from pathlib import Path

import pytest

from tests.cli.terminal import run_process


@pytest.mark.promise("P55", part="the whole story")
@pytest.mark.promise("P57", part="the story that goes well")
@pytest.mark.xdist_group("demo")
def test_the_demo_charges_each_payment_one_time_although_a_worker_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "made" / "report.json"
    ended = run_process(tmp_path, "-o", "json", "demo", "--output", str(file), seconds=110)
    assert ended.code == 0, ended
    report = json.loads(ended.out)
    assert json.loads(file.read_text()) == report
    assert report["passed"] is True and report["duplicate_effect_detected"] is False
    assert [(one["charges"], one["outcome"], one["in_progress"]) for one in report["payments"]] == [(1, "CONFIRMED", False)] * 6
    by_trouble = {one["payment"]: one for one in report["payments"]}
    assert by_trouble["1001"]["event_types"][-1] == "returned"
    assert [by_trouble[one]["calls"] for one in ("1001", "1002", "1003", "1004", "1005", "1006")] == [1, 1, 2, 1, 1, 1]
    assert "probe_absent" in by_trouble["1003"]["event_types"]
    assert "lease_lost" in by_trouble["1006"]["event_types"] and by_trouble["1006"]["event_types"][-1] == "probe_committed"
    naive = {one["payment"]: one["charges"] for one in report["naive"]["payments"]}
    assert naive == {"1001": 1, "1002": 2, "1003": 1, "1004": 2, "1005": 2, "1006": 2}
    assert not list(tmp_path.glob("*.db"))


@pytest.mark.promise("P57", part="a provider that commits twice; usage")
@pytest.mark.xdist_group("demo")
def test_a_second_charge_makes_the_demo_fail(tmp_path: Path) -> None:
    ended = run_process(tmp_path, "-o", "json", "demo", "--provider-commits-twice", seconds=110)
    report = json.loads(ended.out)
    assert (ended.code, report["passed"], report["duplicate_effect_detected"]) == (1, False, True)
    assert "NOT every payment" in ended.err
    assert run_process(tmp_path, "demo", "--nonsense").code == 2
