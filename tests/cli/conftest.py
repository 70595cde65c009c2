"""A folder with a ledger, and the command line called inside it, in this process."""

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import App
from settled.app import App as AppType
from settled_cli.main import run
from tests.cli.terminal import EFFECTS, Ended


class Terminal:
    """The command line in one folder. `app` has the contracts of EFFECTS on the ledger of that folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch
        self.reference = ""

    def __call__(self, *arguments: str, stdin: str = "") -> Ended:
        self._capsys.readouterr()
        self._monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = run(arguments)
        said = self._capsys.readouterr()
        return Ended(code, said.out, said.err)

    def json(self, *arguments: str) -> Any:
        """Run a command that must succeed, and return its answer."""
        ended = self("-o", "json", *arguments)
        assert ended.code == 0, ended
        return json.loads(ended.out)

    def lost(self, app: AppType, name: str = "pay", **arguments: Any) -> str:
        """Execute an effect whose answer is lost; return its operation ID."""
        return app.execute(name, {"n": 1, "how": "lose", **arguments}).operation_id


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """The command line in an empty folder, without any settings of this machine."""
    for name in [name for name in os.environ if name.startswith("SETTLED_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Terminal(tmp_path, capsys, monkeypatch)


@pytest.fixture
def app(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """A ledger in the terminal's folder, with an app in a module of a name of its own there."""
    module = f"effects_{abs(hash(terminal.folder))}"
    (terminal.folder / f"{module}.py").write_text(EFFECTS)
    monkeypatch.syspath_prepend(str(terminal.folder))
    terminal.reference = f"{module}:app"
    assert terminal("init").code == 0
    made: App = __import__(module).app
    yield made
    made.close()
    del sys.modules[module]
