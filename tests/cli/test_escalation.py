"""`settled escalation` and `settled quarantine ack|assign|snooze`: what an operator has at night."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from settled import App, NeedsReview
from tests.cli.conftest import Terminal


@pytest.fixture
def waiting(app: App) -> str:
    """An operation that waits for a person."""

    def review(arguments: dict[str, int]) -> None:
        raise NeedsReview("look")

    app.effect(name="review", operation_id=lambda a: f"review:{a['n']}", isolation="thread", risk="financial")(review)
    return app.execute("review", {"n": 1}).operation_id


@pytest.mark.promise("S66", part="by command: the event is kept, with the name and the OS user")
def test_ack_assign_and_snooze_are_kept_and_decide_nothing(terminal: Terminal, app: App, waiting: str) -> None:
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for arguments, said in (
        (("ack", waiting, "--actor", "ana"), ("acknowledged", True)),
        (("assign", waiting, "--to", "bo", "--actor", "ana"), ("assigned_to", "bo")),
        (("snooze", waiting, until, "--actor", "ana", "--reason", "bank holiday"), ("snoozed_until", until.replace("Z", "+00:00"))),
    ):
        ended = terminal("-o", "json", "quarantine", *arguments)
        assert (ended.code, json.loads(ended.out)[said[0]]) == (0, said[1])
    assert [event.type for event in app.events(waiting)][-3:] == ["acknowledged", "assigned", "snoozed"]
    assert app.get(waiting).status == "quarantined"
    (row,) = json.loads(terminal("-o", "json", "escalation", "list").out)
    assert (row["operation_id"], row["assigned_to"], row["next"]) == (waiting, "bo", until)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("ack", "{}"), 2),
        (("ack", "{}", "--actor", " "), 2),
        (("ack", "nowhere", "--actor", "ana"), 3),
        (("snooze", "{}", "tomorrow", "--actor", "ana"), 2),
        (("snooze", "{}", "2020-01-01T00:00:00Z", "--actor", "ana"), 2),
        (("assign", "{}", "--actor", "ana"), 2),
    ],
)
def test_what_is_missing_or_wrong_is_said_and_changes_nothing(
    terminal: Terminal, app: App, waiting: str, arguments: tuple[str, ...], code: int
) -> None:
    ended = terminal("quarantine", *(one.format(waiting) for one in arguments))
    assert ended.code == code and "Traceback" not in ended.err
    assert app.events(waiting)[-1].type == "quarantined"


def test_ack_is_refused_where_nothing_is_open(terminal: Terminal, app: App, waiting: str) -> None:
    app.confirm(waiting, actor="ana", reason="r", evidence_reference="e", expected_version=app.get(waiting).version)
    assert terminal("quarantine", "ack", waiting, "--actor", "ana").code == 4


@pytest.mark.promise("S64", part="undelivered notifications are shown by status and by health")
def test_status_shows_what_was_told_to_nobody(terminal: Terminal, waiting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    status = json.loads(terminal("-o", "json", "status").out)
    assert status["incidents_open"] == 1
    (queue,) = status["escalations_undelivered"]
    assert (queue["channel"], queue["undelivered"]) == ("(no worker has looked)", 1)
    assert "incidents: 1 open, 1 notifications UNDELIVERED" in terminal("status").out
    monkeypatch.setenv("SETTLED_HEALTH__OLDEST_UNDELIVERED_SECONDS", "0.001")
    problems = json.loads(terminal("-o", "json", "health").out)["problems"]
    assert any("no worker has routed 1 notifications undelivered" in one for one in problems)
    assert json.loads(terminal("-o", "json", "escalation", "undelivered").out)[0]["undelivered"] == 1


def settings(folder: Path, text: str) -> str:
    file = folder / "channels.toml"
    file.write_text(text)
    return str(file)


def test_a_channel_can_be_tried_before_the_night(terminal: Terminal, tmp_path: Path) -> None:
    pager = '[escalation.channels.pager]\nkind = "command"\ncommand = ["/bin/{}", "--token", "hunter2"]\n'
    file = settings(tmp_path, pager.format("true"))
    tried = terminal("--config", file, "-o", "json", "escalation", "test", "pager")
    assert (tried.code, json.loads(tried.out)["delivered"]) == (0, True)
    shown = terminal("--config", file, "-o", "json", "config", "show").out
    assert "hunter2" not in shown and "/bin/true" in shown
    assert terminal("--config", file, "config", "validate").code == 0
    file = settings(tmp_path, pager.format("false"))
    tried = terminal("--config", file, "-o", "json", "escalation", "test", "pager")
    assert (tried.code, json.loads(tried.out)["error"]) == (1, "it ended with code 1")
    unknown = terminal("--config", file, "escalation", "test", "nobody")
    assert unknown.code == 78 and "Declared: log, pager" in unknown.err


HOOK = '[escalation.channels.hook]\nkind = "webhook"\nurl = "https://example.org/T0/s3cr3t"\nsecret = {}\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HOOK.format('{ env = "NOT_SET_ANYWHERE" }'), "escalation.channels.hook: the secret is missing"),
        (HOOK.format('"hunter2"'), "escalation.channels.hook.secret is ***, but must be a section"),
        (HOOK.format('{ env = "A" }') + "colour = 1\n", "escalation.channels.hook.colour is not a setting"),
        (HOOK.format('{ env = "A" }') + "timeout_second = 1\n", "did you mean timeout_seconds?"),
        ('[escalation.channels.hook]\nkind = "pigeon"\n', "escalation.channels.hook"),
        ('[escalation.ladders.default]\nsteps = [{ channel = "hook" }]\n', "names the channel 'hook', which is not declared"),
        ('[escalation.ladders.x]\nsteps = [{ channel = "log" }]\n', "is for nobody"),
        ('[escalation.ladders.x]\nrisks = ["high"]\nsteps = [{ chanel = "log" }]\n', "did you mean channel?"),
        (
            '[escalation.ladders.default]\nsteps = [{ channel = "log", after_seconds = 9 }, { channel = "log" }]\n',
            "in the order of their after_seconds",
        ),
        ("[contracts.pay]\nunknown_rate_max = 20\n", "must be a share between 0 and 1"),
    ],
)
def test_a_mistake_in_the_settings_is_named_and_no_secret_is_shown(terminal: Terminal, tmp_path: Path, text: str, why: str) -> None:
    ended = terminal("--config", settings(tmp_path, text), "config", "validate")
    assert ended.code == 78 and why in ended.err, ended.err
    assert "hunter2" not in ended.err and "s3cr3t" not in ended.err
