"""A framework that is not installed is one clear line."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from settled import ConfigurationError
from settled.integrations.needs import FrameworkMissingError, need

ROOT = Path(__file__).resolve().parents[3]


def test_a_missing_framework_is_one_line_that_says_what_to_install() -> None:
    with pytest.raises(FrameworkMissingError) as missing:
        need("no_such_framework.prebuilt", "langgraph")
    assert "pip install 'settled[langgraph]'" in str(missing.value) and "\n" not in str(missing.value)
    assert isinstance(missing.value, ConfigurationError) and isinstance(missing.value, ImportError)


def test_a_framework_that_is_broken_itself_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_framework.py").write_text("import what_it_needs_and_lacks\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError) as broken:
        need("half_framework", "half")
    assert not isinstance(broken.value, FrameworkMissingError)


@pytest.mark.promise("P88", part="no agent framework is imported with the tools")
def test_the_neutral_core_imports_no_framework() -> None:
    code = (
        "import sys, settled.integrations as i; i.effect_tool; "
        "print([n for n in ('langgraph','langchain_core','openai','agents','mcp','pydantic_ai','claude_agent_sdk') if n in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "lib", capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("adapter", "package", "extra"),
    [
        ("langgraph", "langgraph", "langgraph"),
        ("openai_agents", "agents", "openai-agents"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("claude_agent_sdk", "claude_agent_sdk", "claude-agent-sdk"),
    ],
)
def test_an_adapter_without_its_framework_says_which_extra_to_install(
    adapter: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what Python itself takes for "is not there"
    for name in [one for one in sys.modules if one.startswith(package + ".") or one == f"settled.integrations.{adapter}"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(FrameworkMissingError) as missing:
        importlib.import_module(f"settled.integrations.{adapter}")
    assert f"pip install 'settled[{extra}]'" in str(missing.value) and "\n" not in str(missing.value)
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
