"""The examples' own contracts, certified in a few rounds against their destinations: mails and appointments are counted as files."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.cli.terminal import ROOT, run_process

NARROW = ("--point", "after commit", "--host", "none", "--trouble", "none", "--trouble", "answer lost", "--trouble", "lost before")
EXAMPLES = [
    ("mail", "app:send_notice", "sandbox:Mail", "aiosmtpd", {"CONFIRMED", "UNKNOWN"}),  # a lost mail: only a person can tell
    ("caldav", "app:book_appointment", "sandbox:Calendar", "radicale", {"CONFIRMED"}),
]


@pytest.mark.promise("S76", part="destinations of another kind: no key and a search, and a name that the client chooses")
@pytest.mark.parametrize(("example", "contract", "sandbox", "needs", "outcomes"), EXAMPLES, ids=[one[0] for one in EXAMPLES])
def test_an_example_survives_a_worker_killed_after_the_commit(
    tmp_path: Path, example: str, contract: str, sandbox: str, needs: str, outcomes: set[str]
) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"NOT TESTED: this example needs {needs}. Install it: pip install -e '.[test]'")
    file = tmp_path / "certificate.json"
    arguments = ("certify", contract, "--sandbox", sandbox, *NARROW, "--output", str(file))
    ended = run_process(ROOT / "examples" / example, *arguments, seconds=110)
    assert ended.code == 0, ended
    told = json.loads(file.read_text())
    assert told["cases_played"] == 3 and told["cases_at_their_point"] >= 1
    assert {one["outcome"] for one in told["cases"]} == outcomes
    assert all(one["effects"] <= 1 for one in told["cases"])
