"""Commands that look: status, health, doctor, config, db, audit, sweep."""

import contextlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from settled import App
from settled.presence import Presence
from settled.steps.refusing import tell_refused
from settled.store.sqlite_library import sqlite_module
from settled_cli import ailments
from settled_cli.commands import health
from settled_cli.survey import survey
from tests.cli.conftest import Terminal
from tests.cli.terminal import environment

ROOT = Path(__file__).parents[2]
TAMPER = (
    "import sys; from settled.store.sqlite_library import sqlite_module as m; c = m().connect(sys.argv[1]); c.executescript(sys.argv[2])"
)


def tamper(terminal: Terminal, app: App, script: str) -> None:
    """Change the ledger as another program would, in a process of its own."""
    app.close()
    subprocess.run([sys.executable, "-c", TAMPER, str(terminal.folder / "settled.db"), script], env=environment(), check=True)


@pytest.mark.promise("S70", part="status and doctor")
def test_status_counts_by_status_and_names_what_waits(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1})
    terminal.lost(app, n=2)
    app.execute("send", {"n": 3})
    app.submit("pay", {"n": 4})
    status = terminal.json("status")
    assert status["counts"] == {
        "prepared": 1, "dispatched": 0, "outcome_unknown": 1, "quarantined": 1, "confirmed": 1, "rejected": 0, "cancelled": 0,
    }  # fmt: skip
    assert set(status["oldest"]) == {"prepared", "outcome_unknown", "quarantined"}
    assert (status["unknown"], status["quarantined"], status["workers"]) == ({"send": 1}, {"pay": 1}, [])
    assert [one["sweep"] for one in status["sweeps"]] == ["leases", "reconcile", "escalate", "checkpoint", "retention"]
    text = terminal("status").out
    assert str(terminal.folder / "settled.db") in text and "no worker lives" in text


@pytest.mark.promise("S70", part="status and doctor")
def test_doctor_names_what_it_found_and_what_to_do(terminal: Terminal, app: App) -> None:
    found = {one["check"]: one for one in terminal.json("doctor")}
    module = sqlite_module()
    assert found["database"]["found"] == str(terminal.folder / "settled.db")
    assert found["SQLite"]["found"] == f"{module.__name__} {module.sqlite_version}"
    assert found["mode of settled.db"]["found"] == "0600"
    assert {"journal mode", "schema", "clock", "process environments", "file system", "disk space", "owner"} <= set(found)
    assert found["workers"]["verdict"] == "note" and "settled worker run" in found["workers"]["what_to_do"]
    (terminal.folder / "settled.db").chmod(0o644)
    ended = terminal("doctor")
    assert ended.code == 1
    assert f"chmod o-rwx {terminal.folder / 'settled.db'}" in ended.out


@pytest.mark.promise("S70", part="health without a worker, and with work that is overdue")
def test_health_is_1_and_names_what_is_wrong(terminal: Terminal, app: App) -> None:
    ended = terminal("-o", "json", "health")
    answer = json.loads(ended.out)
    assert (ended.code, answer["healthy"], answer["problems"], answer["paused"]) == (1, False, ["no worker lives"], [])
    assert answer["findings"] == [{"problem": "no worker lives", "see": "docs/operate/runbook.md#no-worker-lives-or-it-is-silent"}]
    app.submit("pay", {"n": 1})
    terminal.lost(app, n=2, name="send")
    (terminal.folder / "settled.toml").write_text("[health]\noldest_due_seconds = 0.001\noldest_unknown_seconds = 0.001\n")
    lines = terminal("health").out.splitlines()
    assert lines[0] == "not healthy" and len(lines) == 4
    for line, (said, entry) in zip(
        lines[1:],
        [
            ("no worker lives", "no-worker-lives-or-it-is-silent"),
            ("an operation has been due for", "work-is-overdue"),
            ("an outcome has been unknown for", "an-outcome-has-been-unknown-for-too-long"),
        ],
        strict=True,
    ):
        assert line.startswith(said) and line.endswith(f"(see docs/operate/runbook.md#{entry})")


@pytest.mark.promise("S70", part="each finding of health names an entry of the runbook that is there")
def test_every_entry_that_health_names_is_in_the_runbook() -> None:
    page = (ROOT / "docs/operate/runbook.md").read_text(encoding="utf-8")
    anchors = {head.lower().replace(",", "").replace(" ", "-") for head in re.findall(r"^## (.+)$", page, re.MULTILINE)}
    named = set(re.findall(r'"([a-z]+(?:-[a-z]+){2,})"', inspect.getsource(ailments) + inspect.getsource(health)))
    assert len(named) == 8 and named <= anchors, named - anchors


@pytest.mark.promise("S70", part="the age of each worker's sign of life; a worker that is silent beside one that is not is named")
def test_health_tells_when_each_worker_was_seen(terminal: Terminal, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Presence(app.shell, kind="worker", contracts=("pay",), slots=2)):
        (only,) = terminal.json("health")["workers"]
        assert 0 <= only["seen_seconds_ago"] < 60
        tamper(terminal, app, "UPDATE worker SET seen_us = seen_us - 400000000")
        assert json.loads(terminal("-o", "json", "health").out)["problems"] == ["no worker was seen for 180 s"]
        with contextlib.closing(Presence(app.shell, kind="worker", contracts=("pay",), slots=2)):
            (problem,) = json.loads(terminal("-o", "json", "health").out)["problems"]
            assert problem.startswith("the worker with pid ") and "was not seen for 40" in problem


@pytest.mark.promise("S71", part="the command")
def test_config_shows_values_with_their_origins(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def origin(name: str, *flags: str) -> tuple[object, str]:
        return next((one["value"], one["origin"]) for one in terminal.json("config", "show", *flags) if one["name"] == name)

    assert origin("database") == ("./settled.db", "./settled.db")
    (terminal.folder / "settled.toml").write_text('database = "file.db"\n[worker]\nslots = 3\n')
    assert origin("database") == (str(terminal.folder / "file.db"), "settled.toml")
    assert origin("worker.slots") == (3, "settled.toml")
    monkeypatch.setenv("SETTLED_DATABASE", "environment.db")
    assert origin("database") == ("environment.db", "SETTLED_DATABASE")
    assert origin("database", "--database", "postgresql://u:hunter2@h/d") == ("postgresql://u:***@h/d", "flag")
    assert terminal.json("config", "validate")["valid"] is True
    (terminal.folder / "settled.toml").write_text("[worker]\nslot = 3\n")
    ended = terminal("config", "validate")
    assert ended.code == 78 and "slots" in ended.err
    assert [path.name for path in terminal.folder.iterdir()] == ["settled.toml"]


@pytest.mark.promise("S89", part="SELECT works, UPDATE is refused")
def test_the_shell_reads_and_writes_nothing(terminal: Terminal, app: App) -> None:
    app.submit("pay", {"n": 1})
    shell = ("db", "shell", "--read-only")
    assert terminal.json(*shell, "SELECT operation_id, status FROM operation") == [{"operation_id": "pay:1", "status": "prepared"}]
    writes = ("UPDATE operation SET version = 9", "DELETE FROM payload", "DROP TABLE event", "VACUUM INTO 'copy.db'", "ATTACH 'o.db' AS o")
    wrong = ("PRAGMA query_only=OFF; UPDATE operation SET version = 9", "SELEKT", "SELECT * FROM absent")
    for code, statement in [*((4, one) for one in writes), *((2, one) for one in wrong)]:
        ended = terminal(*shell, statement)
        assert (ended.code, ended.out, "Nothing was changed" in ended.err) == (code, "", True), (statement, ended)
        assert "Traceback" not in ended.err
    several = terminal("-o", "jsonl", *shell, stdin="SELECT 1 AS a\n\nSELECT 2 AS a\n")
    assert (several.code, several.out) == (0, '{"a":1}\n{"a":2}\n')
    stopped = terminal("-o", "jsonl", *shell, stdin="SELECT 1 AS a\nUPDATE operation SET version = 9\nSELECT 2 AS a\n")
    assert (stopped.code, stopped.out) == (4, '{"a":1}\n')
    assert app.get("pay:1").version == 1
    assert not (terminal.folder / "copy.db").exists() and not (terminal.folder / "o.db").exists()


@pytest.mark.promise("S09", part="the commands")
def test_audit_finds_what_another_program_changed(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    assert terminal("audit", "verify").code == 0
    head = terminal.json("audit", "head")
    lines = [json.loads(line) for line in terminal("audit", "export").out.splitlines()]
    assert (lines[0]["head"], lines[0]["seal"]) == (head["head"], head["seal"])
    assert [one["type"] for one in lines if one["kind"] == "event"] == ["submitted", "dispatched", "raised", "quarantined"]
    kept = f"{head['seal']}:{head['head']}"
    assert terminal("audit", "verify", "--head", kept).code == 0
    assert terminal("audit", "verify", "--head", f"{head['seal']}:{'0' * 64}").code == 1
    assert terminal("audit", "verify", "--head", "nonsense").code == 2
    tamper(terminal, app, "DROP TRIGGER event_no_update; UPDATE event SET status = 'confirmed' WHERE sequence = 3")
    ended = terminal("-o", "json", "audit", "verify")
    assert ended.code == 1
    assert ("pay:1", 3) in [(one["operation_id"], one["sequence"]) for one in json.loads(ended.out)]


@pytest.mark.promise("S22", part="one edited row")
def test_db_check_names_an_edited_row(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    assert terminal("db", "check").code == 0
    tamper(terminal, app, "UPDATE operation SET version = version + 1")
    ended = terminal("db", "check")
    assert ended.code == 1 and "pay:1" in ended.out


@pytest.mark.promise("D54", part="show and list")
def test_a_corrupt_row_is_named_and_never_interpreted(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    app.execute("pay", {"n": 2})
    tamper(terminal, app, "DROP TRIGGER event_no_update; UPDATE event SET data = '{' WHERE sequence = 3 AND operation = 1")
    ended = terminal("op", "show", "pay:1")
    assert (ended.code, ended.out) == (1, "")
    assert "pay:1" in ended.err and "event" in ended.err
    assert terminal("op", "show", "pay:2").code == 0
    assert terminal("op", "list").code == 0


def test_db_upgrade_and_journal_say_what_was_and_what_is(terminal: Terminal, app: App) -> None:
    app.close()
    assert terminal.json("db", "upgrade")["changed"] is False
    had = terminal.json("db", "journal", "delete")
    assert had["after"] == "delete"
    assert next(one["found"] for one in terminal.json("doctor") if one["check"] == "journal mode") == "delete"


def test_a_sweep_by_hand_does_its_work_once_and_is_remembered(terminal: Terminal, app: App) -> None:
    app.execute("send", {"n": 1, "how": "found"})
    app.close()
    ran = terminal.json("sweep", "run", "reconcile", "--app", terminal.reference)
    assert (ran["examined"], ran["moved"], ran["errors"]) == (1, 1, 0)
    assert terminal.json("op", "show", "send:1")["status"] == "confirmed"
    assert [one["sweep"] for one in terminal.json("sweep", "history")] == ["reconcile"]
    assert terminal.json("sweep", "history", "leases") == []
    listed = {one["sweep"]: one for one in terminal.json("sweep", "list")}
    assert listed["reconcile"]["last"] == ran["started"] and listed["reconcile"]["next"] is None
    assert terminal("sweep", "run", "nonsense").code == 2


@pytest.mark.promise("S91", part="health says which contract waits")
def test_health_names_a_contract_whose_handlers_hang(terminal: Terminal, app: App) -> None:
    worker = Presence(app.shell, kind="worker", contracts=("pay",), slots=2)
    try:
        tell_refused(app.shell, worker.id, ["pay"])
        ended = terminal("health")
        assert ended.code == 1
        assert "handlers of pay hang" in ended.out and "abandoned_limit" in ended.out
        tell_refused(app.shell, worker.id, [])
        assert "hang" not in terminal("health").out
    finally:
        worker.close()


def steps_of(look: Callable[[], object], app: App) -> int:
    """Count the steps of SQLite's machine, by tens, that a look takes."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with app.ledger.read() as transaction:
        connection = transaction.cursor.connection
    connection.set_progress_handler(count, 10)
    look()
    connection.set_progress_handler(None, 0)
    return steps


@pytest.mark.promise("S70", part="what status and health read does not grow with the history")
def test_a_look_costs_the_same_however_long_the_history_is(terminal: Terminal, app: App) -> None:
    def history(first: int, count: int) -> None:
        for row in app.submit_many([("pay", {"n": n}) for n in range(first, first + count)]):
            app.cancel(row.operation_id, actor="ana", reason="not wanted")

    terminal.lost(app, n=1, name="send")
    terminal.lost(app, n=2)
    history(10, 5)
    survey(app)
    short = steps_of(lambda: survey(app), app)
    history(100, 300)
    assert short > 0 and steps_of(lambda: survey(app), app) <= short + 5
