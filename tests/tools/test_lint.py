"""Each lint finds what was planted for it, and lets its nearest innocent neighbour pass."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

LINT = Path(__file__).resolve().parents[2] / "tools" / "lint.py"
WORDS = 'class Status(StrEnum):\n    PREPARED = "prepared"\n    CONFIRMED = "confirmed"\n'


def lint(root: Path, files: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the linter over a fresh tree that holds `files` and the words the status rule reads."""
    for path, text in {"lib/settled/core/words.py": WORDS, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return subprocess.run([sys.executable, str(LINT), str(root)], capture_output=True, text=True, check=False)


def found(root: Path, path: str, text: str, rule: str) -> bool:
    """Answer whether exactly this rule spoke about this file; anything else the linter says fails the test."""
    answer = lint(root, {path: text})
    assert "Traceback" not in answer.stderr
    lines = [line for line in answer.stdout.splitlines() if line.startswith(path)]
    assert all(f": {rule}: " in line for line in lines), answer.stdout
    assert answer.returncode == (1 if lines else 0), answer.stdout + answer.stderr
    return bool(lines)


def cases(*planted_and_innocent: tuple[str, str, bool]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("path", "text", "planted"), planted_and_innocent)


@pytest.mark.promise("S78", part="the lint")
@cases(
    ("tests/test_x.py", "import sqlite3\nfrom settled import App\n", True),
    ("tests/test_x.py", "from settled_worker.pump import Pump\ndef test_x():\n    from sqlite3 import connect\n", True),
    ("tests/test_x.py", "import sqlite3\n", False),
    ("tests/test_x.py", "from settled import App\nCHILD = 'import sqlite3'\n", False),
)
def test_a_second_sqlite_library_beside_an_app_in_a_test_is_found(tmp_path: Path, path: str, text: str, planted: bool) -> None:
    assert found(tmp_path, path, text, "one_sqlite_per_process") is planted


@pytest.mark.promise("S21", part="the lint")
@cases(
    ("lib/settled/operation.py", "def f(status):\n    return status == 'confirmed'\n", True),
    ("worker/settled_worker/pump.py", "def f(status):\n    return 'prepared' != status\n", True),
    ("cli/settled_cli/main.py", "def f(status):\n    return status in ('x', 'prepared')\n", True),
    ("lib/settled/app.py", "def f(status):\n    match status:\n        case 'confirmed':\n            return 1\n", True),
    ("lib/settled/app.py", "def f(status):\n    return status is Status.CONFIRMED or status == 'settled'\n", False),
    ("lib/settled/core/fold.py", "def f(status):\n    return status == 'confirmed'\n", False),
    ("lib/settled/store/schema.py", "def f(status):\n    return status == 'confirmed'\n", False),
)
def test_a_status_text_compared_outside_the_core_is_found(tmp_path: Path, path: str, text: str, planted: bool) -> None:
    assert found(tmp_path, path, text, "status_is_compared_in_core_only") is planted


@pytest.mark.promise("S95", part="the lint")
@cases(
    ("lib/settled/execution/process.py", "import os\nos.waitpid(-1, os.WNOHANG)\n", True),
    ("worker/settled_worker/worker.py", "from os import waitpid\nwaitpid(-1, 0)\n", True),
    ("lib/settled/execution/process.py", "import os\nos.waitid(os.P_ALL, 0, os.WEXITED)\n", True),
    ("cli/settled_cli/main.py", "import os\nos.wait()\n", True),
    ("lib/settled/execution/supervisor.py", "import os\nos.waitpid(-1, 0)\n", False),
    ("lib/settled/execution/process.py", "import os\nos.waitpid(7, 0)\nx.wait()\n", False),
)
def test_reaping_other_peoples_children_is_found(tmp_path: Path, path: str, text: str, planted: bool) -> None:
    assert found(tmp_path, path, text, "only_the_supervisor_reaps_strangers") is planted


@pytest.mark.promise("S95", part="the lint")
@cases(
    ("lib/settled/execution/runner.py", "import pickle\n", True),
    ("lib/settled/execution/runner.py", "def f():\n    from multiprocessing.connection import Client\n", True),
    ("lib/settled/execution/runner.py", "import json\n", False),
)
def test_pickle_and_multiprocessing_in_execution_are_found(tmp_path: Path, path: str, text: str, planted: bool) -> None:
    assert found(tmp_path, path, text, "no_pickle_in_execution") is planted


@cases(
    ("lib/settled/app.py", "import time\ntime.time()\n", True),
    ("lib/settled/app.py", "import time as t\ndef f(clock=t.monotonic):\n    pass\n", True),
    ("worker/settled_worker/pump.py", "from time import clock_gettime_ns as now\nnow(1)\n", True),
    ("lib/settled/app.py", "from datetime import UTC, datetime\ndatetime.now(UTC)\n", True),
    ("lib/settled/app.py", "import datetime as dt\ndt.datetime.utcnow()\n", True),
    ("lib/settled/app.py", "import time\nfrom datetime import datetime\ntime.sleep(1)\ndatetime.fromtimestamp(0)\nclock.now()\n", False),
    ("lib/settled/clock.py", "import time\ntime.time_ns()\n", False),
    ("cli/settled_cli/demo/shop.py", "import time\ntime.time()\n", False),
    ("examples/x.py", "import time\ntime.time()\n", False),
)
def test_a_clock_read_outside_the_clock_module_is_found(tmp_path: Path, path: str, text: str, planted: bool) -> None:
    assert found(tmp_path, path, text, "clocks_are_read_in_one_place") is planted


@cases(
    ("lib/settled/core/row.py", "import structlog\n", True),
    ("lib/settled/core/row.py", "from settled.store import writer\n", True),
    ("lib/settled/core/row.py", "from ..store import writer\n", True),
    ("lib/settled/core/row.py", "import json\nfrom settled.core.words import Status\nfrom . import words\n", False),
)
def test_a_core_that_needs_more_than_the_standard_library_is_found(tmp_path: Path, path: str, text: str, planted: bool) -> None:
    assert found(tmp_path, path, text, "core_needs_nothing") is planted


CLAIM = "runs every effect exactly" + " once"


@pytest.mark.promise("X7")
@cases(
    ("README.md", f"settled {CLAIM}.\n", True),
    ("docs/guide/deep.md", f"# A page\n\nIt {CLAIM.replace(' once', chr(10) + 'once')}.\n", True),
    ("docs/index.md", "It offers Guaranteed" + " Delivery.\n", True),
    ("SECURITY.md", "It is production" + "-ready.\n", True),
    ("lib/settled/app.py", f'class App:\n    """It {CLAIM}."""\n', True),
    ("cli/settled_cli/main.py", f'HELP = "it {CLAIM}"\n', True),
    ("tests/test_x.py", f'"""It {CLAIM}."""\n', True),
    ("README.md", f"It never {CLAIM}.\n", False),
    ("README.md", f"What we cannot say:\nit {CLAIM}.\n", False),
    ("README.md", f"It cannot fly.\n\nIt {CLAIM}.\n", True),
)
def test_an_overclaim_is_found_unless_it_is_denied_beside_it(tmp_path: Path, path: str, text: str, planted: bool) -> None:
    assert found(tmp_path, path, text, "nothing_is_overclaimed") is planted


@cases(
    (".ci/run", "cat ../" + "shared/x\n", True),
    ("docs/index.md", "see /" + "work/main\n", True),
    ("docs/index.md", "see home/" + "work/main and network/x\n", False),
)
def test_a_place_outside_the_repository_is_found(tmp_path: Path, path: str, text: str, planted: bool) -> None:
    assert found(tmp_path, path, text, "nothing_outside_is_named") is planted


def test_what_is_not_python_is_named_in_one_sentence_and_nothing_passes(tmp_path: Path) -> None:
    answer = lint(tmp_path, {"lib/settled/app.py": "def f(:\n"})
    assert answer.returncode == 1
    assert answer.stderr.startswith("lib/settled/app.py:1: not Python")
    assert "Traceback" not in answer.stderr
