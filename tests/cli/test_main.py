"""The command line as a whole: help, exit codes, pipes, and what it never does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from settled import App, Status
from settled_cli.main import cli
from tests.cli.conftest import Terminal
from tests.cli.terminal import COMMAND, Ended, environment, run_process, start

HEAVY = ("sqlalchemy", "pydantic", "apscheduler", "rich", "settled.app")
DECISION = ("--actor", "ana", "--reason", "r", "--evidence-reference", "T-1")


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of every command that does something."""
    if not isinstance(command, click.Group):
        return [path]
    context = click.Context(command)
    names = command.list_commands(context)
    return [leaf for name in names if (found := command.get_command(context, name)) for leaf in leaves(found, (*path, name))]


def test_help_imports_nothing_that_a_help_text_does_not_need(tmp_path: Path) -> None:
    code = (
        "import sys; from settled_cli.main import run; assert run(['--help']) == 0; "
        f"found = [name for name in {HEAVY!r} if name in sys.modules]; sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", leaves(cli), ids=" ".join)
def test_every_command_explains_itself(terminal: Terminal, path: tuple[str, ...]) -> None:
    ended = terminal(*path, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: settled {' '.join(path)}")


LEDGER_COMMANDS = [
    ("doctor",),
    ("status",),
    ("health",),
    ("op", "list"),
    ("op", "show", "x"),
    ("op", "events", "x"),
    ("op", "wait", "x"),
    ("op", "cancel", "x", "--actor", "a", "--reason", "r"),
    ("op", "stop", "x", "--actor", "a", "--reason", "r"),
    ("op", "approve", "x", "--actor", "a", "--reason", "r"),
    ("op", "deny", "x", "--actor", "a", "--reason", "r"),
    ("op", "explain", "x"),
    ("quarantine", "list"),
    ("quarantine", "confirm", "x", *DECISION, "--expected-version", "1"),
    ("quarantine", "reject", "x", *DECISION, "--expected-version", "1"),
    ("quarantine", "authorize-retry", "x", *DECISION, "--expected-version", "1", "--confirm-operation-id", "x"),
    ("submit", "pay", "--args", "{}", "--operation-id", "x"),
    ("sweep", "list"),
    ("sweep", "history"),
    ("sweep", "run", "escalate"),
    ("db", "upgrade"),
    ("db", "check"),
    ("db", "journal", "delete"),
    ("db", "shell", "--read-only", "SELECT 1"),
    ("audit", "verify"),
    ("audit", "head"),
    ("audit", "export"),
    ("evidence", "add", "--operation-id", "x", "--source", "s", "--status", "pending"),
]


@pytest.mark.promise("P64", part="every command of this version that needs no app")
@pytest.mark.parametrize("arguments", LEDGER_COMMANDS, ids=lambda arguments: " ".join(arguments[:2]))
def test_no_command_but_init_creates_a_ledger(terminal: Terminal, arguments: tuple[str, ...]) -> None:
    ended = terminal(*arguments)
    assert (ended.code, ended.out) == (78, "")
    assert "settled init" in ended.err
    assert list(terminal.folder.iterdir()) == []


@pytest.mark.promise("P64", part="app commands")
@pytest.mark.parametrize("arguments", [("worker", "run", "--once"), ("op", "probe", "x"), ("sweep", "run", "leases")], ids=" ".join)
def test_commands_with_user_code_create_no_ledger_either(terminal: Terminal, app: App, arguments: tuple[str, ...]) -> None:
    missing = terminal.folder / "other.db"
    ended = terminal("--database", str(missing), *arguments, "--app", terminal.reference)
    assert ended.code == 78
    assert "settled init" in ended.err
    assert not missing.exists()


def test_init_makes_parents_and_leaves_an_existing_ledger_as_it_is(terminal: Terminal) -> None:
    place = terminal.folder / "a" / "b" / "ledger.db"
    first = terminal("init", "--database", str(place), "-o", "json")
    assert (first.code, json.loads(first.out)["created"]) == (0, True)
    before = place.read_bytes()
    again = terminal("-o", "json", "--database", str(place), "init")
    assert (again.code, json.loads(again.out)["created"]) == (0, False)
    assert place.read_bytes() == before


@pytest.mark.promise("P63")
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("op", "list", "--limit", "0"), 2, "--limit"),
        (("op", "list", "--status", "pending"), 2, "--status"),
        (("nonsense",), 2, "nonsense"),
        (("op", "show", "absent"), 3, "settled op list"),
        (("submit", "pay", "--args", "{", "--operation-id", "x"), 2, "--args"),
        (("op", "cancel", "absent", "--actor", " ", "--reason", "r"), 3, "absent"),
        (("evidence", "add", "--source", "s", "--status", "pending"), 2, "--operation-id"),
        (("db", "shell", "SELECT 1"), 2, "--read-only"),
        (("--config", "absent.toml", "op", "list"), 78, "absent.toml"),
        (("--database", ":memory:", "op", "list"), 78, "memory"),
        (("worker", "run"), 78, "--app"),
        (("worker", "run", "--app", "absent:app"), 78, "No module named 'absent'"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, tuple) else None,
)
def test_a_mistake_of_a_person_is_one_sentence_and_a_code(
    terminal: Terminal, app: App, arguments: tuple[str, ...], code: int, says: str
) -> None:
    ended = terminal(*arguments)
    assert (ended.code, ended.out) == (code, "")
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.promise("S69", part="75")
def test_a_busy_store_ends_with_75_and_nothing_stored(terminal: Terminal, app: App) -> None:
    hold = (
        "import sys; from settled.store.sqlite_library import sqlite_module; "
        "c = sqlite_module().connect(sys.argv[1], isolation_level=None); c.execute('BEGIN IMMEDIATE'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(terminal.folder / "settled.db")],
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        ended = terminal("submit", "pay", "--app", terminal.reference, "--args", '{"n": 1}')
        holder.communicate()
    assert (ended.code, ended.out) == (75, "")
    assert "Try again" in ended.err
    assert terminal.json("op", "list") == []


def run_without_reader(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a command whose reader is gone before it writes; return its code and what it said on standard error."""
    ours, theirs = os.pipe()
    with start(folder, *arguments, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE) as command:
        os.close(ours)
        os.close(theirs)
        _, err = command.communicate(timeout=60)
    return command.returncode, err


@pytest.mark.promise("S68", part="a reader that goes away")
@pytest.mark.parametrize("arguments", ["op list", "-o json op list", "-o jsonl op list", "op show pay:1", "audit export", "config show"])
def test_a_reader_that_goes_away_is_quiet_and_no_failure(terminal: Terminal, app: App, arguments: str) -> None:
    app.submit_many([("pay", {"n": number}) for number in range(100)])
    assert run_without_reader(terminal.folder, *arguments.split()) == (0, "")


def test_a_decision_is_made_whole_and_keeps_its_code_although_nobody_reads_the_answer(terminal: Terminal, app: App) -> None:
    app.submit("pay", {"n": 1})
    said = ("--actor", "ana", "--reason", "typo")
    assert run_without_reader(terminal.folder, "op", "cancel", "pay:1", *said) == (0, "")
    assert app.get("pay:1").status is Status.CANCELLED
    code, err = run_without_reader(terminal.folder, "op", "wait", "pay:1")
    assert code == 1 and "Traceback" not in err


def test_an_answer_that_cannot_be_written_is_said_to_be_missing(terminal: Terminal, app: App) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "op", "list"], cwd=terminal.folder, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert "could not be written" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("S68", part="formats")
def test_data_goes_to_standard_output_and_notes_do_not(terminal: Terminal, app: App) -> None:
    for number in (1, 2):
        app.submit("pay", {"n": number})
    whole = json.loads(terminal("-o", "json", "op", "list").out)
    lines = [json.loads(line) for line in terminal("op", "list", "-o", "jsonl").out.splitlines()]
    assert whole == lines
    assert [one["operation_id"] for one in whole] == ["pay:2", "pay:1"]
    text = terminal("-o", "json", "op", "show", "pay:1").out
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=2) + "\n"
    table = terminal("op", "list").out.splitlines()
    assert table[0].split() == ["operation", "id", "contract", "status", "outcome", "attempts", "updated", "at", "waits", "for", "reason"]
    assert table[1].split()[5].endswith("Z")
    waited = terminal("-o", "json", "op", "wait", "pay:1", "--timeout", "0")
    assert json.loads(waited.out)["status"] == "prepared" and "pay:1" in waited.err


@pytest.mark.promise("S68", part="text of others")
def test_text_of_others_reaches_no_terminal_raw(terminal: Terminal, app: App) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\nforged  pay  confirmed\u202e\x9b31m"
    app.submit("pay", {"n": 1}, operation_id=f"id {evil}!")
    terminal.lost(app, n=2, says=evil)
    for arguments in (("op", "list"), ("op", "show", "pay:2"), ("op", "events", "pay:2"), ("op", "explain", "pay:2"), ("op", "show", evil)):
        for format_ in ("table", "json", "jsonl"):
            ended = terminal("-o", format_, *arguments)
            shown = ended.out + ended.err
            assert not [one for one in shown if (ord(one) < 32 and one != "\n") or one in "\x7f\x9b\u202e"], (arguments, format_)
    assert len(terminal("op", "list").out.splitlines()) == 3


@pytest.mark.promise("S123", part="a flag against an explicit App(database=)")
def test_a_flag_never_overrules_an_app_that_names_its_own_database(terminal: Terminal) -> None:
    (terminal.folder / "fixed.py").write_text("from settled import App\napp = App('a.db')\n")
    for name in ("a.db", "b.db"):
        assert terminal("init", "--database", name).code == 0

    def once(*flags: str, **more: str) -> Ended:
        return run_process(terminal.folder, *flags, "worker", "run", "--once", "--app", "fixed:app", more=more)

    refused = once("--database", "b.db")
    assert refused.code == 78 and "b.db" in refused.err and "a.db" in refused.err
    assert once("--database", f"{terminal.folder}/./a.db").code == 0
    chosen = once(SETTLED_DATABASE="b.db")
    assert chosen.code == 0 and str(terminal.folder / "a.db") in chosen.err


def test_a_settings_file_named_on_the_command_line_wins_over_the_one_in_the_environment(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (terminal.folder / f"{name}.toml").write_text(f'database = "{name}.db"\n')
    monkeypatch.setenv("SETTLED_CONFIG", "two.toml")
    before, after, neither = (
        terminal.json("--config", "one.toml", "config", "validate"),
        terminal.json("config", "validate", "--config", "one.toml"),
        terminal.json("config", "validate"),
    )
    assert [Path(one["database"]).name for one in (before, after, neither)] == ["one.db", "one.db", "two.db"]


def test_looking_imports_no_channel_and_no_mail() -> None:
    """What a tired person calls first starts quickly."""
    code = "import sys, settled_cli.commands.status, settled_cli.commands.health; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in ran.stdout.split() if name.startswith("settled_worker") or name == "smtplib"]
