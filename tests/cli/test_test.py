"""`settled test`: a file's own suite, its exit codes, its forms; a bad file gets one sentence."""

import json
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Terminal

HEAD = "from settled.testing import SafetyCheck, SafetyReport\n"
GOOD = HEAD + "def run_safety_suite():\n    print('noise')\n    return SafetyReport(checks=(SafetyCheck(name='a', passed=True),))\n"


def suite(folder: Path, code: str) -> str:
    file = folder / "suite.py"
    file.write_text(textwrap.dedent(code))
    return str(file)


@pytest.mark.promise("D56", part="all pass, one fails, sync and async")
@pytest.mark.promise("D57", part="an empty report: exit 1")
@pytest.mark.parametrize(
    ("code", "exit_code", "verdict"),
    [
        (GOOD, 0, "SAFE UNDER TESTED CONDITIONS"),
        (GOOD.replace("def run", "async def run"), 0, "SAFE UNDER TESTED CONDITIONS"),
        (GOOD.replace("True", "False"), 1, "UNSAFE UNDER TESTED CONDITIONS"),
        (HEAD + "def run_safety_suite():\n    return SafetyReport(checks=())\n", 1, "UNSAFE UNDER TESTED CONDITIONS"),
    ],
    ids=["passes", "async", "fails", "empty"],
)
def test_the_exit_code_and_the_last_line_are_the_verdict(
    terminal: Terminal, tmp_path: Path, code: str, exit_code: int, verdict: str
) -> None:
    ended = terminal("test", suite(tmp_path, code))
    assert (ended.code, ended.out.splitlines()[-1]) == (exit_code, verdict), ended
    assert "noise" not in ended.out


@pytest.mark.promise("D56", part="a file that gives no report")
@pytest.mark.promise("D57", part="look-alikes end the command with 2")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\n", "has no function run_safety_suite"),
        ("run_safety_suite = 1\n", "has no function run_safety_suite"),
        ("def run_safety_suite(provider): pass\n", "must take no arguments"),
        ("def run_safety_suite(): return True\n", "returned bool"),
        ("class SafetyReport: passed = True\ndef run_safety_suite(): return SafetyReport()\n", "returned SafetyReport, not a settled"),
        ("import nowhere_to_be_found\n", "cannot be imported: ModuleNotFoundError"),
        ("raise SystemExit(0)\n", "cannot be imported: SystemExit"),
        ("def run_safety_suite(): raise SystemExit(0)\n", "failed: SystemExit"),
        ("def broken(:\n", "cannot be imported: SyntaxError"),
        (GOOD.replace("True", "'false'"), "failed: TypeError"),
        (GOOD.replace("(SafetyCheck(name='a', passed=True),)", "[SafetyCheck(name='a', passed=True)]"), "failed: TypeError"),
    ],
)
def test_a_file_that_gives_no_report_gets_one_sentence(terminal: Terminal, tmp_path: Path, code: str, words: str) -> None:
    ended = terminal("test", suite(tmp_path, code))
    assert (ended.code, ended.out) == (2, ""), ended
    assert words in ended.err and "Traceback" not in ended.err and len(ended.err.replace("noise\n", "").splitlines()) == 1


@pytest.mark.promise("D56")
def test_a_file_ends_the_command_with_0_1_or_2_by_what_it_gives(terminal: Terminal, tmp_path: Path) -> None:
    files = {
        GOOD: 0,
        GOOD.replace("def run", "async def run"): 0,
        GOOD.replace("True", "False"): 1,
        "x = 1\n": 2,
        "def run_safety_suite(): return True\n": 2,
        "import nowhere_to_be_found\n": 2,
    }
    assert terminal("test", str(tmp_path / "missing.py")).code == 2
    for code, exit_code in files.items():
        ended = terminal("test", suite(tmp_path, code))
        assert ended.code == exit_code and "Traceback" not in ended.err, (code, ended)
        assert exit_code < 2 or len([line for line in ended.err.splitlines() if line != "noise"]) == 1, ended


@pytest.mark.promise("D56", part="a missing file")
def test_a_missing_file_or_none_is_wrong_usage_and_never_the_bundled_suite(terminal: Terminal, tmp_path: Path) -> None:
    for arguments in (["missing.py"], [], [""], ["--bundled", suite(tmp_path, GOOD)]):
        ended = terminal("test", *arguments)
        assert (ended.code, ended.out) == (2, "") and "Traceback" not in ended.err, ended


@pytest.mark.promise("D58", part="as text, JSON and JUnit")
def test_reports_are_written_in_the_form_their_names_say_and_folders_are_made(terminal: Terminal, tmp_path: Path) -> None:
    made = tmp_path / "a" / "b"
    outputs = [str(made / name) for name in ("r.json", "r.xml", "r.txt")]
    options = [word for output in outputs for word in ("--output", output)]
    ended = terminal("-o", "json", "test", suite(tmp_path, GOOD), *options)
    assert ended.code == 0, ended
    answer = json.loads(ended.out)
    assert answer["verdict"] == "SAFE UNDER TESTED CONDITIONS" and json.loads((made / "r.json").read_text()) == answer
    assert ElementTree.parse(made / "r.xml").getroot().get("failures") == "0"
    assert (made / "r.txt").read_text().endswith("SAFE UNDER TESTED CONDITIONS\n")
    assert sorted(one.name for one in made.iterdir()) == ["r.json", "r.txt", "r.xml"]


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = terminal("test", suite(tmp_path, GOOD), "--output", str(tmp_path / "file" / "r.json"))
    assert (ended.code, ended.out) == (2, "") and "Nothing was run" in ended.err


@pytest.mark.promise("D56", part="the bundled suite")
@pytest.mark.xdist_group("suite")
def test_the_bundled_suite_passes_and_prints_the_comparison(terminal: Terminal, tmp_path: Path) -> None:
    ended = terminal("test", "--bundled")
    assert ended.code == 0, ended
    assert "naive retry: " in ended.out and ended.out.endswith("\nSAFE UNDER TESTED CONDITIONS\n")
    assert not list(tmp_path.iterdir())
