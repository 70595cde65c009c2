"""Every command of the runbook is one that exists, and nobody who copies them all makes a second effect."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from settled import App
from settled_cli.invocation import Invocation
from settled_cli.main import cli
from tests.cli.conftest import Terminal, app, terminal

__all__ = ["app", "terminal"]  # fixtures

DOCS = Path(__file__).parents[2] / "docs"
ROOT = DOCS.parent
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md"), ROOT / "README.md"])
ALERTS = (
    "no worker lives", "has been due for", "is unknown for longer than its contract allows", "quarantined > 0", "lease_lost",
    "notifications undelivered", "bytes free", "end with 75", "the ledger is a copy", "paused", "audit verify", "hang",
)  # fmt: skip


def commands(page: Path) -> list[str]:
    """Return every command line of our own in the shell blocks of a page, lines that go on joined."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in re.split(r"\s&&\s|\s\|\s|(?:^|\s)#\s|…", line) if part.strip()]
    return [part for part in parts if part.startswith("settled ")]


def parse(words: list[str]) -> None:
    """Take a command line apart as the command line does, and run nothing. Raises ClickException for what is not one."""
    command: click.Command = cli
    context = cli.make_context("settled", list(words), obj=Invocation())
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None and name is not None
        command, context = found, found.make_context(name, rest, parent=context)


def mentioned(page: Path) -> list[str]:
    """Return every command of our own that the prose of a page names, whole or not."""
    return [found.replace("\\|", "|") for found in re.findall(r"`(settled [a-z][^`]*)`", page.read_text(encoding="utf-8"))]


def unknown(words: list[str]) -> list[str]:
    """Return the words of a mentioned command that are neither a verb nor an option. One of several verbs is written as a|b."""
    commands: list[click.Command] = [cli]
    wrong: list[str] = []
    for word in words:
        name = word.partition("=")[0].strip("[]")
        if name.startswith("-"):
            options = [parameter for command in commands for parameter in command.params]
            known = {name for one in options for name in (*one.opts, *one.secondary_opts)} | {"--help", "--version"}
            wrong += [] if name in known else [word]
        elif all(isinstance(command, click.Group) for command in commands):
            found = [command.get_command(click.Context(command), verb) for command in commands for verb in name.split("|")]  # type: ignore[attr-defined]
            wrong += [word] if None in found else []
            commands = [one for one in found if one is not None] or commands
    return wrong


def test_a_command_that_does_not_exist_is_found() -> None:
    for wrong in ("quarantine confirm", "quarantine list --nonsense", "nonsense", "op show"):
        with pytest.raises(click.ClickException):
            parse(shlex.split(wrong))


def test_a_mentioned_command_that_does_not_exist_is_found() -> None:
    assert unknown(["quarantine", "confrim"]) == ["confrim"] and unknown(["op", "list", "--nonsense", "x"]) == ["--nonsense"]
    assert unknown(["quarantine", "ack|assign|snoze"]) == ["ack|assign|snoze"] and unknown(["op", "show", "ID", "-o", "json"]) == []


@pytest.mark.parametrize("line", sorted({line for page in PAGES for line in mentioned(page)}))
def test_every_command_that_prose_names_exists(line: str) -> None:
    assert unknown(line.split()[1:]) == []


@pytest.mark.parametrize("line", sorted({line for page in PAGES for line in commands(page)}))
def test_every_command_of_the_manuals_exists(line: str) -> None:
    parse(shlex.split(line)[1:])


@pytest.mark.parametrize("alert", ALERTS)
def test_the_runbook_has_an_entry_for_every_alert(alert: str) -> None:
    assert alert in (DOCS / "operate/runbook.md").read_text(encoding="utf-8")


@pytest.mark.promise("S121", "P62", part="nothing in the runbook makes a second effect without a typed confirmation")
def test_whoever_copies_the_whole_runbook_makes_no_second_effect(terminal: Terminal, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTLED_APP", terminal.reference)
    ended: dict[str, Any] = {}
    for number, line in enumerate([*commands(DOCS / "operate/runbook.md"), "settled worker run --once"], 1):  # each on a fresh quarantine
        words = shlex.split(line.replace("shop.effects:app", terminal.reference))[1:]
        operation_id = terminal.lost(app, n=number)
        ended[line] = terminal(*(operation_id if word == "ID" else word for word in words))
        assert "Traceback" not in ended[line].err
    typed = [one.code for line, one in ended.items() if line.startswith("settled quarantine authorize-retry")]
    assert typed == [2] * len(typed) and typed
    assert ended["settled worker run --once"].code == 0
    for one in range(1, len(ended) + 1):
        assert [event.type for event in app.events(f"pay:{one}")].count("dispatched") == 1


def test_the_runbook_names_no_program_that_is_not_there_on_a_usual_host() -> None:
    lines = re.findall(r"```sh\n(.*?)```", (DOCS / "operate/runbook.md").read_text(encoding="utf-8"), re.DOTALL)
    programs = {line.split()[0] for block in lines for line in block.splitlines() if line}
    assert programs <= {"settled", "systemctl", "journalctl"}
