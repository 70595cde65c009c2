"""Backup, restore, purge and checkpoint on the command line."""

import json
import os
import shutil
from pathlib import Path

import pytest

from settled import App, OperationConflictError, ProbeResult, ResultUnavailableError, Status, TransitionRefusedError
from settled.steps.persons import os_user
from settled.steps.restore import restore
from settled.store import audit
from settled.store.ledger import Ledger
from settled.store.restoring import RestoreRefusedError
from tests.cli.conftest import Terminal
from tests.cli.terminal import run_process
from tests.lib.children import Child
from tests.lib.store.ledgers import monotonic_us

HOLDER = """
import sys, time
import pysqlite3
connection = pysqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM operation").fetchone()
print("open", flush=True)
sys.stdin.readline()
"""


def backed_up(terminal: Terminal, app: App) -> str:
    """Make operations of many kinds, back up, and let the ledger go on; return the backup."""
    app.submit("pay", {"n": 1})
    app.execute("pay", {"n": 2})
    terminal.lost(app, "send", n=3)
    terminal.lost(app, "pay", n=4)  # no probe: it is quarantined by the first sweep
    terminal("sweep", "run", "reconcile", "--app", terminal.reference)
    assert terminal("db", "backup", "copy.db").code == 0
    app.execute("pay", {"n": 1})  # dispatched after the backup, which holds it as prepared
    app.close()
    return "copy.db"


@pytest.mark.promise("S10")
@pytest.mark.promise("S113", part="held as prepared, then dispatched, then restored: one open attempt, no fence")
def test_a_restored_ledger_dispatches_nothing_and_believes_nothing(terminal: Terminal, app: App) -> None:
    backup = backed_up(terminal, app)
    assert app.get("pay:1").status is Status.CONFIRMED
    app.close()
    wal = terminal.folder / "settled.db-wal"
    done = terminal.json("db", "restore", backup, "--reason", "the disk died")
    assert done["unknown"] == 3
    assert Path(done["replaced"]).exists()
    assert not wal.exists() and not Path(f"{done['replaced']}-wal").exists()
    statuses = {one: app.get(one).status for one in ("pay:1", "pay:2", "send:3", "pay:4")}
    assert statuses == {
        "pay:1": Status.OUTCOME_UNKNOWN, "pay:2": Status.CONFIRMED, "send:3": Status.OUTCOME_UNKNOWN, "pay:4": Status.OUTCOME_UNKNOWN,
    }  # fmt: skip
    assert [event.type for event in app.events("pay:1")] == ["submitted", "restored"]
    assert (app.get("pay:1").attempts, app.get("pay:1").attempt_records[0]["fence"]) == (1, "may_still_run")
    assert terminal.json("status")["paused"] == "restored"
    assert "restored" in terminal("health").out
    assert app.execute("pay", {"n": 9}).status is Status.PREPARED  # nor is anything new dispatched
    assert app.reconcile("send:3").evidence[-1]["type"] == "probe_unknown"  # probes read
    assert terminal("resume", "--reason", "x").code == 4
    assert terminal("db", "check").code == 0
    app.close()
    assert terminal.json("db", "adopt", "--reason", "taken over") == {"adopted": True, "moved": False, "restored": 0}
    assert [event.type for event in app.events("pay:1")].count("restored") == 1
    assert app.get("pay:9").status is Status.PREPARED  # submitted after the restore: it is no part of the copy
    assert app.execute("pay", {"n": 10}).status is Status.CONFIRMED
    assert terminal("db", "check").code == 0
    assert "the disk died" in app.ledger.meta["restoration:1"]


@pytest.mark.promise("S114", part="a db backup file")
def test_a_backup_file_itself_dispatches_nothing(terminal: Terminal, app: App) -> None:
    app.submit("pay", {"n": 1})
    terminal("db", "backup", "copy.db")
    copy = App("copy.db")
    copy.register(app.contract("pay"))
    assert copy.execute("pay", {"n": 1}).status is Status.PREPARED
    assert terminal("--database", "copy.db", "resume", "--reason", "x").code == 4
    assert terminal("--database", "copy.db", "health").code == 1
    copy.close()


@pytest.mark.promise("S10", part="with a live worker: exit 4")
def test_restore_is_refused_beside_whoever_has_the_ledger_open(terminal: Terminal, app: App) -> None:
    backup = backed_up(terminal, app)
    before = (terminal.folder / "settled.db").stat().st_ino
    with app.ledger.read():
        app.execute("pay", {"n": 5})  # a caller's incarnation, alive
        refused = terminal("db", "restore", backup, "--reason", "x")
        assert refused.code == 4 and "in use" in refused.err
    app.close()
    with Child(HOLDER, terminal.folder / "settled.db") as child:
        assert child.hear() == "open"
        refused = terminal("db", "restore", backup, "--reason", "x")
        assert refused.code == 4 and str(child.pid) in refused.err
    assert (terminal.folder / "settled.db").stat().st_ino == before
    assert [one for one in os.listdir(terminal.folder) if "restoring" in one or "replaced" in one] == []


MISTAKES = [
    (2, ["db", "restore", "copy.db"], "--reason"),
    (2, ["db", "restore", "copy.db", "--reason", " "], "blank"),
    (78, ["db", "restore", "nothing.db", "--reason", "x"], "no backup"),
    (78, ["db", "restore", "text.db", "--reason", "x"], "not a SQLite database"),
    (1, ["db", "restore", "damaged.db", "--reason", "x"], "damaged.db"),
    (4, ["db", "restore", "settled.db", "--reason", "x"], "itself"),
    (4, ["db", "backup", "copy.db"], "there already"),
    (2, ["db", "purge", "--older-than", "yesterday"], "time span"),
    (2, ["db", "purge"], "--older-than"),
    (3, ["db", "purge", "--older-than", "1d", "--contract", "pya"], "pya"),
]


@pytest.mark.parametrize(("code", "command", "says"), MISTAKES, ids=[" ".join(each[1]) for each in MISTAKES])
def test_a_mistake_changes_no_file(terminal: Terminal, app: App, code: int, command: list[str], says: str) -> None:
    app.execute("pay", {"n": 1})
    app.close()
    terminal("db", "backup", "copy.db")
    shutil.copy("copy.db", "damaged.db")
    with open("damaged.db", "r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xee" * 4096 * 8)
    Path("text.db").write_text("no database at all, but long enough to be looked at" * 40)
    before = {one: Path(one).read_bytes() for one in ("settled.db", "copy.db")}
    ended = terminal(*command)
    assert (ended.code, ended.out) == (code, ""), ended
    assert says in " ".join(ended.err.split()), ended.err
    assert {one: Path(one).read_bytes() for one in before} == before
    assert [one for one in os.listdir() if "restoring" in one or "replaced" in one or ".part" in one] == []


def test_a_ledger_that_is_lost_or_damaged_is_restored_from_its_backup(terminal: Terminal, app: App) -> None:
    backup = backed_up(terminal, app)
    Path("settled.db").write_bytes(b"\x00" * 100_000)
    assert terminal("db", "restore", backup, "--reason", "damaged").code == 0
    assert terminal("db", "check").code == 0
    app.close()
    Path("settled.db").unlink()
    assert terminal.json("db", "restore", backup, "--reason", "gone")["replaced"] is None
    assert terminal("db", "check").code == 0


def test_a_restored_row_is_numbered_above_every_attempt_that_a_recorder_knows(terminal: Terminal, app: App) -> None:
    app.submit("pay", {"n": 1})
    terminal("db", "backup", "copy.db")
    from settled.execution.recorder import Recorder

    recorder = Recorder.create(app.ledger.run_directory / "old.recorder", 4, "old", "boot")
    assert recorder.claim(0, 1, 7)
    recorder.close()
    app.close()
    restore(app.shell, Path("copy.db"), "x", stamp="s")
    assert app.get("pay:1").attempts == 8


def test_a_restore_leaves_no_board_of_the_ledger_that_was_there_before(terminal: Terminal, app: App) -> None:
    backup = backed_up(terminal, app)
    run = terminal.folder / "settled.db.run"
    (old,) = [one.name for one in run.iterdir() if one.name.startswith("board.")]
    (run / f"{old}.3").touch()  # of whoever waited there
    (run / "board.of.somebody").mkdir()
    assert terminal("db", "restore", backup, "--reason", "damaged").code == 0
    app.submit("pay", {"n": 10})
    (new,) = [one.name for one in run.iterdir() if one.name.startswith("board.") and one.is_file()]
    assert new != old and new.endswith(f".{(terminal.folder / 'settled.db').stat().st_ino:x}")


def test_a_restore_that_finds_another_file_in_the_way_leaves_everything(terminal: Terminal, app: App) -> None:
    terminal("db", "backup", "copy.db")
    app.close()
    Path("settled.db.replaced-s").touch()
    with pytest.raises(RestoreRefusedError):
        restore(app.shell, Path("copy.db"), "x", stamp="s")
    assert terminal("db", "check").code == 0


# ---------------------------------------------------------------- retention


@pytest.mark.promise("S30")
def test_a_purge_removes_texts_of_what_is_settled_and_nothing_else(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1, "note": "PURGED-MARKER"}, metadata={"batch": "kept"})
    kept = terminal.lost(app, "send", note="KEPT-MARKER")
    app.submit("pay", {"n": 7, "note": "KEPT-MARKER"})
    counts = terminal.json("status")["counts"]
    assert terminal.json("db", "purge", "--older-than", "0.001", "--dry-run") == {"purged": 0, "would_be_purged": 1, "examined": 1}
    assert app.get("pay:1").result() == {"paid": 1}
    assert terminal.json("db", "purge", "--older-than", "1h")["purged"] == 0
    assert terminal.json("db", "purge", "--older-than", "0.001")["purged"] == 1
    assert terminal.json("status")["counts"] == counts
    with pytest.raises(ResultUnavailableError):
        app.get("pay:1").result()
    again = app.submit("pay", {"n": 1, "note": "PURGED-MARKER"})
    assert (again.created, again.status) == (False, Status.CONFIRMED)
    with pytest.raises(OperationConflictError):
        app.submit("pay", {"n": 1, "note": "other"})
    assert app.get("pay:1").metadata == {"batch": "kept"}
    assert (app.get(kept).status, len(app.events("pay:1"))) == (Status.OUTCOME_UNKNOWN, 3)
    assert terminal("db", "check").code == 0
    terminal("db", "checkpoint")
    app.close()
    stored = Path("settled.db").read_bytes()
    assert b"PURGED-MARKER" not in stored and b"KEPT-MARKER" in stored  # overwritten, not only forgotten


@pytest.mark.promise("S30", part="the sweep: a default, an age for each contract, batches, and no second walk")
def test_the_sweep_keeps_each_contracts_texts_as_long_as_the_settings_say(terminal: Terminal, app: App) -> None:
    for number in range(5):
        app.execute("pay", {"n": number})
        app.execute("gift", {"n": number})
        app.approve(f"gift:{number}", actor="ana", reason="ok")
        app.execute("gift", {"n": number})
    Path("settled.toml").write_text("[retention]\npayload_seconds = 0.001\n[contracts.gift]\npayload_seconds = 3600\n")
    assert terminal.json("sweep", "run", "retention")["moved"] == 5
    assert terminal.json("sweep", "run", "retention")["examined"] == 0 or terminal.json("sweep", "run", "retention")["moved"] == 0
    with pytest.raises(ResultUnavailableError):
        app.get("pay:3").result()
    with app.ledger.read() as transaction:
        left = transaction.cursor.execute("SELECT DISTINCT contract FROM operation JOIN payload ON operation.id = payload.operation")
        assert left.fetchall() == [("gift",)]


def test_without_settings_texts_are_kept_for_ever(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1})
    assert terminal.json("sweep", "run", "retention")["moved"] == 0
    assert app.get("pay:1").result() == {"paid": 1}


def test_a_retry_is_not_authorized_once_its_arguments_are_purged(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1, "how": "refuse"})
    terminal("db", "purge", "--older-than", "0.001")
    op = app.add_evidence(source="provider", operation_id="pay:1", result=ProbeResult.committed(healthy=True))
    assert op is not None and op.status is Status.QUARANTINED
    said = {"actor": "ana", "reason": "x", "evidence_reference": "T", "expected_version": op.version}
    with pytest.raises(TransitionRefusedError, match="purged"):
        app.authorize_retry("pay:1", **said, accept_second_effect=True, assert_nothing_can_arrive=True)
    assert app.reject("pay:1", **said, assert_nothing_can_arrive=True).status is Status.REJECTED


# ---------------------------------------------------------------- the log


@pytest.mark.promise("P20", part="a long reader holds no writer up, and the log is cut once it is gone")
def test_a_long_reader_makes_the_log_grow_and_stops_nobody(terminal: Terminal, app: App) -> None:
    app.shell.limits = app.ledger.limits = type(app.shell.limits)(wal_bytes_max=100_000)
    app.submit("pay", {"n": 0})
    if app.ledger.meta["journal_mode"] != "wal":
        pytest.skip("this SQLite works without a WAL")
    with Child(HOLDER.replace("connection.execute", "connection.isolation_level = None\nconnection.execute('BEGIN')\nconnection.execute"),
               terminal.folder / "settled.db") as child:  # fmt: skip
        assert child.hear() == "open"
        app.submit_many([("pay", {"n": number, "pad": "x" * 2000}) for number in range(1, 200)])
        from settled.store.maintenance import checkpoint

        held = checkpoint(app.ledger)
        assert held.behind > 0 and held.log_bytes > 100_000 and not held.truncated
        app.submit("pay", {"n": 1000})  # nobody waits
    freed = checkpoint(app.ledger)
    assert freed.behind == 0 and freed.log_bytes == 0 and freed.truncated


def test_a_backup_of_a_backup_is_the_same_ledger(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1})
    first = terminal.json("db", "backup", "one.db")
    second = terminal.json("--database", "one.db", "db", "backup", "two.db")
    assert (first["seal"], first["head"]) == (second["seal"], second["head"])
    copy = Ledger("two.db", monotonic_us=monotonic_us)
    assert audit.verify(copy) == []
    copy.close()
    assert json.loads(terminal("-o", "json", "audit", "head").out)["head"] == first["head"]


# ---------------------------------------------------------------- keys


@pytest.mark.promise("S29", part="the command line: a new key, the settings, rekey, and who has no key")
def test_people_make_a_key_encrypt_what_is_stored_and_see_who_has_no_key(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1, "note": "MARKER-1"})
    app.close()
    assert terminal("db", "rekey").code == 4
    made = terminal("db", "new-key", "2026-11")
    assert made.code == 0 and made.out.startswith("2026-11:")
    Path("keys").write_text(made.out)
    Path("keys").chmod(0o600)
    Path("settled.toml").write_text('[encryption]\nkeys_file = "keys"\n')
    assert terminal.json("db", "rekey") == {"key": "2026-11", "examined": 2, "encrypted": 2}
    assert terminal.json("db", "rekey")["encrypted"] == 0
    assert terminal("db", "check").code == 0
    assert terminal.json("op", "show", "pay:1")["output"] == {"paid": 1}
    terminal("db", "checkpoint")
    assert b"MARKER-1" not in Path("settled.db").read_bytes()
    assert made.out.strip().partition(":")[2] not in terminal("config", "show").out
    Path("settled.toml").unlink()
    shown = terminal.json("op", "show", "pay:1")
    assert (shown["status"], shown["has_output"]) == ("confirmed", False) and "2026-11" in shown["unreadable"]
    found = terminal("db", "check")
    assert found.code == 1 and "2026-11" in found.out
    assert terminal("db", "new-key", "a:b").code == 2
    Path("settled.toml").write_text('[encryption]\nkeys_file = "keys"\n')
    Path("keys").chmod(0o644)
    assert terminal("op", "show", "pay:1").code == 78


@pytest.mark.promise("S136")
def test_a_ledger_that_was_moved_goes_on_by_the_word_of_a_person(terminal: Terminal, app: App) -> None:
    app.submit("pay", {"n": 1})
    app.execute("send", {"n": 2})  # its outcome is unknown
    before = app.get("send:2")
    app.close()
    assert terminal("db", "adopt", "--moved", "--reason", "nothing moved").code == 4
    (terminal.folder / "new").mkdir()
    shutil.copy("settled.db", "new/settled.db")  # as to another disk: the same bytes in another file
    shutil.copytree("settled.db.run", "new/settled.db.run")
    Path("settled.db").unlink()
    there = ("--database", str(terminal.folder / "new" / "settled.db"))
    assert terminal(*there, "db", "adopt", "--moved", "--reason", "  ").code == 2
    assert terminal(*there, "db", "adopt", "--moved", "--reason", "a new disk").code == 0
    assert terminal(*there, "db", "adopt", "--moved", "--reason", "again").code == 4
    moved = App(terminal.folder / "new" / "settled.db")
    assert moved.get("send:2") == before  # nothing is marked as restored
    assert [event.type for event in moved.events("pay:1")] == ["submitted"]
    moved.close()
    app_there = ("--database", str(terminal.folder / "new" / "settled.db"), "worker", "run", "--once", "--app", terminal.reference)
    ran = run_process(terminal.folder, *app_there)
    assert ran.code == 0, ran
    moved = App(terminal.folder / "new" / "settled.db")
    assert (moved.get("pay:1").status, moved.get("pay:1").attempts) == ("confirmed", 1)
    moved.close()
    exported = terminal(*there, "audit", "export").out
    assert "a new disk" in exported and os_user() in exported
