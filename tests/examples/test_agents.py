"""Each framework's example, played with real processes and a real kill, and the figures of the page about frameworks.

The provider counts for itself. What the page says of an example is what the example printed here.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/agents/frameworks.md"
FRAMEWORKS = {
    "LangGraph": ("langgraph", "langgraph.checkpoint.sqlite"),
    "OpenAI Agents SDK": ("openai_agents", "agents"),
    "Pydantic AI": ("pydantic_ai", "pydantic_ai"),
    "Claude Agent SDK": ("claude_agent_sdk", "claude_agent_sdk"),
}
ROW = r"^\| (?P<framework>[^|]+) \| (?P<killed>in the call|while it waited) \| (?P<bodies>\d+) \| (?P<effects>\d+) \|$"
FIGURES = [one.groupdict() for one in re.finditer(ROW, PAGE.read_text(), re.M)]


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def play(name: str) -> list[dict[str, Any]]:
    environment = {one: value for one, value in os.environ.items() if not one.startswith("SETTLED_")}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / floor) for floor in ("lib", "worker", "cli"))
    command = [sys.executable, str(ROOT / f"examples/agents/{name}_refund.py")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=560)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


@pytest.mark.timeout(600)
@pytest.mark.promise("P76", part="each framework: the answer lost, the process killed, resumed to one effect")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_agent_that_lost_its_answer_and_its_process_goes_on_to_one_effect(framework: str) -> None:
    name, module = FRAMEWORKS[framework]
    if not is_installed(module):
        pytest.skip(f"{framework} is not installed: its crash was NOT played. pip install 'settled[{name.replace('_', '-')}]'")
    ends = play(name)
    assert [(one["killed"], one["effects"], one["told"], one["operation_id"]) for one in ends] == [
        ("in the call", 1, "confirmed", "order:1042:refund"),
        ("while it waited", 1, "confirmed", "order:1042:refund"),
    ]
    said = {one["killed"]: (int(one["bodies"]), int(one["effects"])) for one in FIGURES if one["framework"] == framework}
    assert said == {one["killed"]: (one["bodies"], one["effects"]) for one in ends}


def test_the_page_shows_figures_of_each_framework_two_times() -> None:
    assert sorted(one["framework"] for one in FIGURES) == sorted([*FRAMEWORKS, *FRAMEWORKS])
