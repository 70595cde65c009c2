"""What the command line refuses at the door, and what it says where the ledger cannot be used."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled import App
from settled.store.creation import create_ledger
from tests.cli.conftest import Terminal
from tests.cli.terminal import environment, start
from tests.lib.store.ledgers import another_program


@pytest.mark.parametrize(
    ("deadline", "code"),
    [
        ("9999-12-31T23:59:59-12:00", 2),
        ("0001-01-01T00:00:00+12:00", 2),
        ("9999-12-31T23:59:59.999999+00:00", 0),
        ("0001-01-01T00:00:00+00:00", 0),
    ],
)
def test_a_deadline_outside_the_calendar_stores_nothing_and_breaks_no_list(terminal: Terminal, app: App, deadline: str, code: int) -> None:
    ended = terminal("submit", "pay", "--app", terminal.reference, "--args", '{"n": 1}', "--deadline", deadline)
    assert ended.code == code, ended
    assert len(terminal.json("op", "list")) == (1 if code == 0 else 0)
    assert code == 0 or "Nothing was stored" in ended.err
    assert code != 0 or terminal("op", "show", "pay:1").code == 0


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "1e300"])
def test_a_time_without_an_end_is_refused_before_anything_is_stored(terminal: Terminal, app: App, seconds: str) -> None:
    for option in ("--wait", "--delay"):
        assert terminal("submit", "pay", "--app", terminal.reference, "--args", '{"n": 1}', option, seconds).code == 2
    assert terminal.json("op", "list") == []
    app.submit("pay", {"n": 1})
    assert terminal("op", "wait", "pay:1", "--timeout", seconds).code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("op", "show", "\ud800"),
        ("op", "cancel", "pay:1", "--actor", "ana\udcff", "--reason", "r"),
        ("evidence", "add", "--source", "\udfff", "--operation-id", "pay:1", "--status", "pending"),
    ],
    ids=" ".join,
)
def test_an_argument_that_is_no_text_is_refused_in_one_sentence(terminal: Terminal, app: App, arguments: tuple[str, ...]) -> None:
    app.submit("pay", {"n": 1})
    ended = terminal(*arguments)
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)
    assert "UTF-8" in ended.err
    assert len(app.events("pay:1")) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("db", "backup", ""), ("--config", "", "op", "list"), ("op", "list", "--config="), ("db", "new-key", ""),
        ("db", "restore", "", "--reason", "r"),
        ("certify", "shop:pay", "--sandbox", ""), ("op", "show", ""), ("--database", "", "op", "list"), ("op", "list", "-o", ""),
        ("evidence", "add", "--operation-id", "pay:1", "--source", "s", "--status", "pending", "--reference", ""),
        ("evidence", "add", "--provider-reference", "", "--source", "s", "--status", "pending"),
        ("incident", "export", "pay:1", "--output", ""), ("submit", "pay", "--app", "", "--args", "{}", "--operation-id", "x"),
        ("pause", "--contract", "", "--reason", "r"), ("resume", "--queue", "", "--reason", "r"), ("unit", "install", "main", "--root", ""),
        ("sweep", "run", "leases", ""), ("simulate", "--seeds", ""), ("test", ""), ("mcp", "--token-file", ""), ("escalation", "test", ""),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_empty_value_is_wrong_usage_everywhere_and_nothing_is_done(terminal: Terminal, app: App, arguments: tuple[str, ...]) -> None:
    """Most often it is a variable of a script that nobody has set: a folder, a settings file or everything would be taken for it."""
    app.submit("pay", {"n": 1})
    before = sorted(terminal.folder.iterdir())
    ended = terminal(*arguments)
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1), ended
    assert "is empty. Nothing was changed" in ended.err
    assert sorted(terminal.folder.iterdir()) == before and len(app.events("pay:1")) == 1 and app.pauses() == []


def test_evidence_that_speaks_of_no_effect_echoes_no_reference(terminal: Terminal, app: App) -> None:
    app.submit("pay", {"n": 1})
    add = ("evidence", "add", "--source", "s", "--status", "unknown")
    ended = terminal(*add, "--operation-id", "pay:1", "--reference", "R-1")
    assert (ended.code, ended.out) == (2, "") and "--reference" in ended.err
    assert len(app.events("pay:1")) == 1


@pytest.mark.parametrize(
    "command",
    [
        ("worker", "run"), ("mcp",), ("submit", "pay", "--args", "{}"), ("op", "probe", "pay:1"), ("sweep", "run", "leases"),
        ("certify", "a:b"), ("unit", "install", "main", "--root", "root", "--settled", "/x"),
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("reference", ["shop", "shop:", ":app"])
def test_an_app_that_is_no_reference_is_wrong_usage_everywhere(terminal: Terminal, command: tuple[str, ...], reference: str) -> None:
    ended = terminal(*command, "--app", reference)
    assert (ended.code, ended.out) == (2, "") and "not of the form MODULE:" in ended.err, ended
    assert list(terminal.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("quarantine", "list", "--pending", "--contract", "pay"), 2, "--pending lists every proposal"),
        (("db", "new-key", "a b"), 2, "the key ID 'a b'"),
        (("op", "lsit"), 2, "Did you mean 'list'? See: settled op --help"),
        (("sweep", "run"), 2, "Missing argument 'NAME...'. Choose from: leases, reconcile, escalate, checkpoint, retention. See:"),
        (("--database", "x" * 5000, "init"), 78, "Nothing was made or opened"),
        (("certify", "os:environ"), 78, "os:environ is of type _Environ, not an effect"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else None,
)
def test_a_slip_of_an_operator_is_one_sentence_and_changes_nothing(
    terminal: Terminal, app: App, arguments: tuple[str, ...], code: int, says: str
) -> None:
    before = sorted(terminal.folder.iterdir())
    ended = terminal(*arguments)
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (code, "", 1), ended
    assert says in ended.err
    assert sorted(terminal.folder.iterdir()) == before


def test_what_was_asked_for_and_not_done_is_said(terminal: Terminal, app: App) -> None:
    again = terminal("init", "--group", str(os.getgid()), "--journal", "delete")
    assert again.code == 0 and "--group and --journal changed nothing" in again.err
    assert terminal("init").err == ""
    terminal.lost(app)
    asked = terminal("op", "probe", "pay:1", "--app", terminal.reference)
    assert asked.code == 0 and "nothing was asked" in asked.err


def test_a_ledger_of_a_revision_that_nothing_leads_from_is_not_sent_round_in_a_circle(terminal: Terminal, app: App) -> None:
    app.close()
    another_program(app.ledger.path, "UPDATE alembic_version SET version_num = '0000'")
    ended = terminal("db", "upgrade")
    assert (ended.code, ended.out) == (78, "") and "Use the settled that made it" in ended.err


def test_what_people_write_is_bounded(terminal: Terminal, app: App) -> None:
    app.submit("pay", {"n": 1})
    assert terminal("op", "cancel", "pay:1", "--actor", "ana", "--reason", "x" * 2001).code == 2
    add = ("evidence", "add", "--status", "pending")
    assert terminal(*add, "--source", "x" * 2001, "--operation-id", "pay:1").code == 2
    assert terminal(*add, "--source", "s", "--provider-reference", " ").code == 2
    assert len(app.events("pay:1")) == 1
    assert terminal("op", "cancel", "pay:1", "--actor", "ana", "--reason", "x" * 2000).code == 0


@pytest.mark.parametrize(("head", "code"), [("0:aa", 1), ("0:zz", 2), ("1:", 2), ("x:aa", 2), ("1:aa", 1)])
def test_a_kept_head_is_compared_or_refused_as_no_head(terminal: Terminal, app: App, head: str, code: int) -> None:
    app.submit("pay", {"n": 1})
    assert terminal("audit", "verify", "--head", head).code == code


def test_the_head_of_an_empty_ledger_verifies_later(terminal: Terminal, app: App) -> None:
    kept = terminal.json("audit", "head")
    app.submit("pay", {"n": 1})
    assert kept["seal"] == 0
    assert terminal("audit", "verify", "--head", f"0:{kept['head']}").code == 0


@pytest.mark.parametrize("url", ["postgresql://ana:hun@ter/2@host/db", "mysql://host:1/db?password=hun@ter2", "sqlite://ana:hunter2@host/file:x"])
def test_no_password_of_a_database_url_is_shown(terminal: Terminal, url: str) -> None:
    ended = terminal("--database", url, "op", "list")
    assert ended.code == 78
    assert "hun" not in ended.err and "ter2" not in ended.err


def test_health_names_the_full_disk_and_ends_with_1(terminal: Terminal, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTLED_HEALTH__DISK_FREE_BYTES_MIN", str(1 << 50))
    ended = terminal("health")
    assert ended.code == 1
    assert "bytes free" in ended.out


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
from settled_cli.main import run
sys.exit(run(["init"]))
"""


def test_init_on_a_full_disk_is_75_and_leaves_nothing(terminal: Terminal) -> None:
    done = subprocess.run([sys.executable, "-B", "-c", FULL], cwd=terminal.folder, env=environment(), text=True, capture_output=True)
    assert done.returncode == 75, done.stderr
    assert "no ledger was made. Free disk space" in done.stderr and len(done.stderr.splitlines()) == 1
    assert [each for each in terminal.folder.iterdir() if each.is_file()] == []


@pytest.mark.parametrize("verb", [("upgrade",), ("journal", "delete"), ("adopt", "--reason", "r")], ids=" ".join)
def test_a_removed_run_directory_hides_no_worker(terminal: Terminal, app: App, verb: tuple[str, ...]) -> None:
    app.execute("pay", {"n": 1})  # registers a caller that is not over
    shutil.rmtree(terminal.folder / "settled.db.run")
    ended = terminal("db", *verb)
    assert ended.code == 4, ended
    assert "run directory" in ended.err and str(os.getpid()) in ended.err
    found = {one["check"]: one["verdict"] for one in json.loads(terminal("-o", "json", "doctor").out)}
    assert found["run directory"] == "wrong"


def test_a_copy_is_adopted_although_its_rows_say_that_a_worker_lived_elsewhere(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1})
    assert another_program(terminal.folder / "settled.db", f"VACUUM INTO '{terminal.folder}/copy.db'") == []
    assert terminal("--database", "copy.db", "db", "adopt", "--reason", "a test").code == 0


@pytest.mark.parametrize(
    ("statement", "says"),
    [("UPDATE alembic_version SET version_num = '9999'", "newer settled"), ("DROP TABLE alembic_version", "not a ledger")],
)
@pytest.mark.parametrize("command", ["op list", "db upgrade", "db journal delete"])
def test_another_schema_says_what_to_do(terminal: Terminal, app: App, command: str, statement: str, says: str) -> None:
    another_program(terminal.folder / "settled.db", statement)
    ended = terminal(*command.split())
    assert ended.code == 78
    assert says in ended.err and "db upgrade" not in ended.err


# The interpreter itself may lie where that user cannot read it: everything is imported before this process becomes another user.
AS_NOBODY = """
import contextlib, io, os, sys
from settled_cli.main import run
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    run(["--database", "warm.db", *sys.argv[1:]])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
said = io.StringIO()
with contextlib.redirect_stderr(said):
    code = run(sys.argv[1:])
print(code, said.getvalue(), sep="\\n", end="", file=sys.stderr)
"""


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder that another user may enter, with a ledger in it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        for database in ("settled.db", "warm.db"):
            app = App(f"{name}/{database}")
            create_ledger(Path(name, database), journal="delete", at_us=1)
            app.effect(name="pay", operation_id=lambda a: "pay:1")(lambda: None).submit({})
            app.close()
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize(
    ("mode", "command"),
    [
        (0o600, "op list"), (0o600, "db shell --read-only SELECT"), (0o600, "db upgrade"), (0o600, "db journal delete"),
        (0o644, "db journal delete"), (0o644, "op cancel pay:1 --actor a --reason r"), (0o600, "--database shut/l.db init"),
    ],
)  # fmt: skip
def test_a_ledger_that_this_user_may_not_use_is_78_with_one_sentence(theirs: Path, mode: int, command: str) -> None:
    (theirs / "shut").mkdir(0o700)
    (theirs / "settled.db").chmod(mode)
    (theirs / "settled.db.run").chmod(0o755)
    called = [sys.executable, "-c", AS_NOBODY, *command.split()]
    done = subprocess.run(called, cwd=theirs, env=environment(), text=True, capture_output=True)
    code, *said = done.stderr.splitlines()
    assert (code, done.stdout, len(said)) == ("78", "", 1), done.stderr
    assert mode == 0o600 or "0644 of owner root" in said[0]


@pytest.mark.parametrize("command", [(), ("db",), ("op", "list")], ids=" ".join)
def test_a_help_text_without_a_reader_is_no_failure(terminal: Terminal, command: tuple[str, ...]) -> None:
    ours, other = os.pipe()
    os.close(ours)
    with start(terminal.folder, *command, "--help", stdout=other, stderr=subprocess.PIPE) as ended:
        os.close(other)
        _, err = ended.communicate(timeout=60)
    assert (ended.returncode, err) == (0, "")


def test_what_a_module_prints_on_import_is_no_answer(terminal: Terminal, app: App) -> None:
    (terminal.folder / "chatty.py").write_text(f"print('hello')\nfrom {terminal.reference.partition(':')[0]} import app\n")
    ended = terminal("-o", "json", "submit", "pay", "--app", "chatty:app", "--args", '{"n": 1}')
    assert ended.code == 0 and ended.out.startswith("{") and "hello" in ended.err
    del sys.modules["chatty"]


def test_a_settled_operation_alarms_nobody_about_what_stayed_open(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    version = str(app.get("pay:1").version)
    said = ("--actor", "ana", "--reason", "r", "--evidence-reference", "T-1", "--expected-version", version)
    assert terminal("quarantine", "confirm", "pay:1", *said).code == 0
    for command in ("explain", "show"):
        shown = terminal("op", command, "pay:1").out
        assert "may_still_run" not in shown and "open" not in shown, shown


def test_the_demo_looks_at_its_report_file_before_it_begins(terminal: Terminal) -> None:
    (terminal.folder / "file").write_text("")
    ended = terminal("demo", "--output", "file/report.json")
    assert ended.code == 2
    assert "Nothing was run" in ended.err
