"""The pages for agent developers do what they say: the quick start runs as written, and the links of the table lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

from settled import Status
from settled.core.errors import LedgerUnavailableError, OperationConflictError
from settled.integrations.answers import tell_confirmation_required, tell_conflict, tell_denied, tell_invalid, tell_unavailable
from settled.operation import _NEXT

ROOT = Path(__file__).resolve().parents[2]
INDEX = (ROOT / "docs/agents/index.md").read_text(encoding="utf-8")


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", INDEX, re.DOTALL)


def run(tmp_path: Path, code: str) -> str:
    (tmp_path / "quick.py").write_text(code, encoding="utf-8")
    path = os.pathsep.join(str(ROOT / top) for top in ("lib", "worker", "cli"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")} | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "quick.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quick_start_has_ten_lines_runs_as_written_and_does_it_one_time(tmp_path: Path) -> None:
    code = blocks()[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    said = run(tmp_path, code)
    assert said.splitlines() == INDEX.partition("prints:\n\n```\n")[2].partition("\n```")[0].splitlines()
    assert run(tmp_path, code) == said  # a second process, the same refund: nothing is done again
    assert (tmp_path / "refunds.txt").read_text(encoding="utf-8") == "1042\n"


def test_the_whole_run_of_the_page_works_as_written(tmp_path: Path) -> None:
    assert run(tmp_path, blocks()[0] + blocks()[1]).splitlines()[-1] == "completed"
    assert (tmp_path / "refunds.txt").read_text(encoding="utf-8") == "1042\n"


def test_the_table_of_next_actions_is_that_of_the_code() -> None:
    page = (ROOT / "docs/agents/core.md").read_text(encoding="utf-8")
    table = page.partition("| `effect_status` | `next_action` | the run |")[2].partition("\n\n")[0]
    shown: dict[str, str] = {}
    for line in table.splitlines()[2:]:
        statuses, action, _ = (cell.strip() for cell in line.strip("|").split("|"))
        for status in re.findall(r"`(\w+)`", statuses):
            shown[status] = re.findall(r"`(\w+)`", action)[0]
    told = [
        tell_conflict("t", OperationConflictError("x", "request")),
        tell_invalid("t", "why"),
        tell_unavailable("t", LedgerUnavailableError("busy"), None),
        tell_denied("t"),
        tell_confirmation_required("t", None),
    ]
    assert shown == {str(status): str(_NEXT[status]) for status in Status} | {one.effect_status: str(one.next_action) for one in told}
