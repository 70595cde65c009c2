"""Pause and resume on the command line, and where people see that something is paused."""

import pytest

from settled import App
from tests.cli.conftest import Terminal

MISTAKES = [
    (2, ["pause", "--contract", "pay"], "--reason is missing"),
    (2, ["pause", "--contract", "pay", "--reason", " "], "--reason is blank"),
    (2, ["pause", "--contract", "pay", "--queue", "default", "--reason", "x"], "--contract or --queue, or neither"),
    (2, ["pause", "--contract", "", "--reason", "x"], "is empty"),
    (3, ["pause", "--contract", "pya", "--reason", "x"], "no contract is named 'pya'"),
    (3, ["pause", "--queue", "nowhere", "--reason", "x"], "no queue is named 'nowhere'"),
    (4, ["resume", "--contract", "pay", "--reason", "x"], "not paused"),
]


@pytest.mark.promise("S38", part="blank reason: exit 2")
@pytest.mark.parametrize(("code", "command", "says"), MISTAKES, ids=[" ".join(each[1]) for each in MISTAKES])
def test_a_mistake_pauses_nothing(terminal: Terminal, app: App, code: int, command: list[str], says: str) -> None:
    app.submit("pay", {"n": 1})
    ended = terminal(*command)
    assert (ended.code, ended.out) == (code, "")
    assert says in " ".join(ended.err.split())
    assert terminal.json("status")["pauses"] == []


@pytest.mark.promise("S38", part="the reason is shown by op explain, status, health and lists")
def test_people_see_everywhere_that_something_is_paused(terminal: Terminal, app: App) -> None:
    one = app.submit("pay", {"n": 1}).operation_id
    made = terminal.json("pause", "--contract", "pay", "--reason", "INC-7", "--actor", "ana")
    assert (made["scope"], made["name"], made["actor"], made["reason"]) == ("contract", "pay", "ana", "INC-7")
    assert terminal.json("op", "list")[0]["waits_for"] == "paused"
    assert terminal.json("op", "show", one)["waits_for"] == "paused"
    assert "settled resume --contract pay" in " ".join(terminal.json("op", "explain", one)["explanation"])
    for command in (["status"], ["op", "explain", one], ["pause", "--list"], ["health"]):
        assert "INC-7" in terminal(*command).out, command
    assert terminal.json("status")["pauses"][0]["reason"] == "INC-7"
    terminal.json("pause", "--reason", "everything stops")
    lifted = terminal("resume", "--contract", "pay", "--reason", "mended")
    assert lifted.code == 0 and "still paused: everything" in lifted.err
    assert any('"kind":"pause"' in line and "mended" in line for line in terminal("audit", "export").out.splitlines())
    assert len(terminal.json("pause", "--list")) == 2
