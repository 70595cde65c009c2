"""Tables at a terminal, wide and narrow."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from settled import App
from settled_cli.main import cli
from settled_cli.render import _flowing
from tests.cli.conftest import Terminal
from tests.cli.terminal import start


def at_terminal(folder: Path, columns: int, *arguments: str) -> str:
    """Return what a command prints at a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = start(folder, *arguments, stdin=-3, stdout=theirs, stderr=-3)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # how a terminal tells that its other end is closed
        while part := os.read(ours, 65_536):
            said += part
    os.close(ours)
    assert command.wait() == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", said.decode().replace("\r\n", "\n"))


@pytest.mark.parametrize("columns", [30, 80, 200])
def test_no_value_is_cut_however_narrow_the_terminal_is(terminal: Terminal, app: App, columns: int) -> None:
    app.submit("pay", {"n": 1})
    terminal.lost(app, n=2, says="[bold]no markup[/bold]")
    text = at_terminal(terminal.folder, columns, "op", "show", "pay:2")
    for value in ("pay:2", "quarantined", "UNKNOWN", "handler_error", "[bold]no markup[/bold]"):
        assert value in text


def test_every_list_at_night_fits_into_80_columns_and_cuts_nothing(terminal: Terminal, app: App) -> None:
    one = "invoice:INV-2026-000017:capture"
    app.execute("pay", {"n": 1, "how": "lose"}, operation_id=one)
    Path("settled.toml").write_text('two_person_risks = ["high"]\n')
    said = ("--actor", "ana", "--reason", "found", "--evidence-reference", "T-7", "--expected-version", str(app.get(one).version))
    assert terminal("quarantine", "propose", "authorize-retry", one, *said, "--assert-nothing-can-arrive").code == 0
    lists = ("op list", "quarantine list", "quarantine list --pending", "escalation list", "sweep history", "pause --list", "status")
    assert terminal("pause", "--contract", "pay", "--reason", "looking into it").code == 0
    assert terminal("sweep", "run", "checkpoint").code == 0
    for command in lists:
        text = at_terminal(terminal.folder, 80, *command.split())
        wide = [line for line in text.splitlines()[command == "status" :] if len(line.rstrip()) > 80]  # its first line is a path
        assert not wide, (command, wide)
        if command not in ("sweep history", "pause --list", "status"):
            assert one in text, text


def test_a_narrow_table_shows_every_value_under_its_head() -> None:
    text = _flowing([("operation id", "status", "reason"), ("pay:1", "quarantined", "no_probe"), ("x" * 30, "prepared", "-")], 30)
    assert text.splitlines() == [
        "operation id",
        "    status       reason",
        "pay:1",
        "    quarantined  no_probe",
        "x" * 30,
        "    prepared     -",
    ]


def helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    ctx = click.Context(command, info_name=name, parent=parent, terminal_width=80, max_content_width=80)
    yield ctx.command_path, command.get_help(ctx)
    if isinstance(command, click.Group):
        for verb in command.list_commands(ctx):
            found = command.get_command(ctx, verb)
            assert found is not None
            yield from helps(found, verb, ctx)


def test_no_help_is_cut_or_wider_than_80_columns() -> None:
    for path, text in helps(cli, "settled"):
        said = text.partition("\n\n")[2]  # without the usage line, which has three dots of its own
        wrong = [line for line in said.splitlines() if len(line) > 80 or line.endswith("...")]
        assert not wrong, (path, wrong)
