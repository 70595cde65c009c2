"""The benchmark itself runs, measures both sides, and says so in a form that a program can read."""

import json
from pathlib import Path

import pytest

from tests.bench import run


def test_a_quick_run_measures_the_product_beside_its_floor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "figures.json"
    code = run.main(["--quick", "--only", "submit", "e2e_thread", "inline", "--json", str(report), "--tmp", str(tmp_path)])
    printed = capsys.readouterr().out
    results = json.loads(report.read_text())["results"]
    assert code == 0, printed
    assert [one["workload"] for one in results] == ["submit", "e2e_thread", "inline"]
    for one in results:
        rate = one["shown"][0]
        assert rate["settled"]["median"] > 0 and rate["floor"]["median"] > 0 and rate["of_floor"] > 0
        assert one["workload"] in printed
    assert list(tmp_path.iterdir()) == [report], "a stage was left behind"


def test_a_workload_that_breaks_is_named_and_does_not_take_the_others_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "not-there"
    assert run.main(["--quick", "--only", "submit", "inline", "--tmp", str(missing)]) == 1
    printed = capsys.readouterr().out
    assert "submit failed" in printed and "inline failed" in printed


def test_a_ratio_is_the_nearness_to_the_floor_whether_more_or_less_is_better() -> None:
    assert run.ratio(100.0, 50.0, more_is_better=True) == 0.5
    assert run.ratio(1.0, 2.0, more_is_better=False) == 0.5
    assert run.ratio(0.0, 0.3, more_is_better=False) is None
