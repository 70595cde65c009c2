"""The example over MCP is judged by its exit code, and its exit code by the provider's own count."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_example(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / floor) for floor in ("lib", "worker", "cli"))
    command = [sys.executable, str(ROOT / "examples/agents/mcp_lost_answer.py"), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.timeout(300)
@pytest.mark.promise("S128", part="an answer lost to SIGKILL of server and worker, asked for again by the official client over HTTP")
def test_an_agent_over_mcp_that_lost_its_answer_finds_one_payment() -> None:
    ended = run_example()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "server and worker killed; the agent got no answer" in ended.stdout
    assert "created: False" in ended.stdout and "created: True" not in ended.stdout
    assert "told: confirmed for invoice:1042:payment; payments at the provider: 1" in ended.stdout


@pytest.mark.timeout(300)
def test_the_example_fails_when_the_provider_itself_commits_twice() -> None:
    ended = run_example("--provider-commits-twice")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "payments at the provider: 2" in ended.stdout and "NOT one payment was committed" in ended.stdout
