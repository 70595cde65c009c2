"""The agent's example is judged by its exit code, and its exit code by the provider's own count."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_example(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / floor) for floor in ("lib", "worker", "cli"))
    command = [sys.executable, str(ROOT / "examples/agent_lost_ack.py"), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.timeout(300)
@pytest.mark.promise("P84")
@pytest.mark.promise("P76", part="real processes, killed before the answer")
def test_a_run_that_lost_its_answer_and_its_processes_completes_with_one_payment() -> None:
    ended = run_example()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "worker and agent killed before its answer could be recorded" in ended.stdout
    told = re.search(r"the run is (\w+); it asked for (.*); payments at the provider: (\d+)", ended.stdout)
    assert told is not None
    assert told.groups() == ("completed", "['invoice:1042:payment', 'invoice:1042:payment']", "1")


@pytest.mark.timeout(300)
@pytest.mark.promise("P84")
def test_the_example_fails_when_the_provider_itself_commits_twice() -> None:
    ended = run_example("--provider-commits-twice")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "payments at the provider: 2" in ended.stdout and "NOT one payment was committed" in ended.stdout
