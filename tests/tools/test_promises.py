"""The page of promises says which test shows what, and no mark can name a promise that nobody made."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.promises import SOURCE, Promise, Shown, covered, read_promises, render

ROOT = Path(__file__).resolve().parents[2]
PROMISES = [
    Promise("1.01", ("P02", "D18"), "Identity is stable."),
    Promise("1.02", ("P03",), "One key for the destination."),
    Promise("2.01", ("P05",), "A contract has a name."),
]


def test_every_promise_is_one_row_and_no_id_is_used_twice() -> None:
    chapters, promises = read_promises(SOURCE)
    ids = [id_ for promise in promises for id_ in promise.ids]
    assert len(promises) == len({promise.row for promise in promises}) == 275
    assert len(ids) == len(set(ids)) == 296
    assert {promise.row.partition(".")[0] for promise in promises} == set(chapters)
    assert all("|" not in promise.sentence and "\n" not in promise.sentence for promise in promises)


def test_the_page_names_the_tests_of_a_promise_and_says_not_yet_where_there_are_none() -> None:
    a, b, c = (Shown(f"tests/{name}.py::test_{name}", "") for name in "abc")
    shown = {"P02": {b, a}, "P03": {Shown("tests/d.py::test_d", "the key")}, "P05": {c}}
    page = render({"1": "Identity", "2": "Contracts"}, PROMISES, shown)
    assert "| 1.01 | P02 D18 | Identity is stable. | `tests/a.py::test_a`<br>`tests/b.py::test_b`<br>not yet: D18 |" in page
    assert "| 1.02 | P03 | One key for the destination. | `tests/d.py::test_d` (only the key)<br>not yet |" in page
    assert "| 2.01 | P05 | A contract has a name. | `tests/c.py::test_c` |" in page
    assert "| 1.02 | P03 | One key for the destination. | not yet |" in render({"1": "Identity", "2": "Contracts"}, PROMISES, {})
    assert page.index("## 1. Identity") < page.index("| 1.02") < page.index("## 2. Contracts") < page.index("| 2.01")
    assert covered(PROMISES, shown) == "2 of 4 ids covered, 1 more in part"


@pytest.mark.parametrize("arguments", ['"P999"', "", '"P02", "D99"', '"P02", part=""', '"P02", whole=True'])
def test_a_mark_that_names_no_promise_is_a_collection_error(tmp_path: Path, arguments: str) -> None:
    planted = tmp_path / "test_planted.py"
    planted.write_text(f"import pytest\n\n\n@pytest.mark.promise({arguments})\ndef test_x():\n    pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-q", str(planted)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 2, answer.stdout
    assert "the promise mark names" in answer.stdout
    assert "1 error" in answer.stdout
