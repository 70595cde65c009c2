"""A slice of the soak: `make soak` runs it for as long as one likes."""

from pathlib import Path

import pytest

from tests.soak.run import soak, trends


@pytest.mark.promise("S100", part="a disk that is really full, where one can be mounted; others' kills and freezes beside it")
@pytest.mark.timeout(300)
def test_a_short_soak_doubles_loses_and_forgets_nothing(tmp_path: Path) -> None:
    summary = soak(tmp_path, seconds=10, seed=7, rate=10)
    assert summary["operations"] > 5 and summary["charges"] > 5
    assert summary["wrong"] == {} and summary["damage"] == []


def test_the_first_and_the_last_quarter_are_compared() -> None:
    names = ("worker_kib", "submitter_kib", "database_bytes", "log_bytes", "run_files", "operations")
    found = trends([dict.fromkeys(names, number) for number in range(40)])
    assert found["worker_kib"] == {"first_quarter": 8, "last_quarter": 35, "most": 39}
    assert found["database_bytes_for_each_operation"] == 1
    assert trends([]) == {}
