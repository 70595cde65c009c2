"""A ledger appears whole, once, private, and never over something else."""

import json
import os
import stat
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from settled.core.errors import ConfigurationError, SchemaMismatchError
from settled.store.audit import verify
from settled.store.binding import binding_differs, binding_of, host_digest
from settled.store.creation import create_ledger
from settled.store.ledger import Ledger
from settled.store.sqlite_library import library_version, sqlite_module, wal_is_safe
from tests.lib.children import Child
from tests.lib.store.ledgers import NOW_US, another_program, monotonic_us, new_ledger, run_python, submit


def of_version(*version: int) -> Any:
    """Return this process's driver as if its SQLite had another version."""
    module = types.ModuleType("driver")
    module.__dict__.update(sqlite_module().__dict__)
    module.sqlite_version_info = version  # type: ignore[attr-defined]
    return module


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


CREATE_OPEN = """
import json, os, pathlib, stat, sys, time
os.umask(int(sys.argv[2], 8))
from settled.store.creation import create_ledger
from settled.store.ledger import Ledger
path = pathlib.Path(sys.argv[1])
create_ledger(path, at_us=1, group=sys.argv[3] or None)
ledger = Ledger(str(path), monotonic_us=lambda: time.monotonic_ns() // 1000)
with ledger.write() as transaction:
    transaction.cursor.execute("INSERT INTO meta VALUES ('a', 'b')")
    transaction.cursor.execute("SELECT 1")
made = [path.parent, path.parent.parent, *path.parent.iterdir(), *path.with_name("l.db.run").iterdir()]
modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in made}
print(json.dumps(modes))
"""


@pytest.mark.promise("S26", part="without a group")
@pytest.mark.parametrize("umask", ["000", "022", "077", "777"])
def test_a_ledger_is_private_under_any_umask(tmp_path: Path, umask: str) -> None:
    if umask == "777" and os.geteuid() != 0:
        pytest.skip("nobody but root can make a file in a folder without any rights")
    found = json.loads(run_python(CREATE_OPEN, str(tmp_path / "above" / "folder" / "l.db"), umask, ""))
    folders, turns = {"folder", "above", "l.db.run"}, {"turn", "turn.next"}
    assert {name: oct(value) for name, value in found.items() if name in folders} == dict.fromkeys(folders, oct(0o700))
    assert {oct(value) for name, value in found.items() if name not in folders | turns} == {oct(0o600)}
    assert "l.db" in found
    if wal_is_safe(library_version(sqlite_module())):
        assert {"l.db-wal", "l.db-shm"} <= found.keys()


@pytest.mark.promise("S26", part="with a group")
@pytest.mark.parametrize("umask", ["000", "077"])
def test_a_groups_ledger_is_0660_in_a_setgid_folder(tmp_path: Path, umask: str) -> None:
    found = json.loads(run_python(CREATE_OPEN, str(tmp_path / "folder" / "l.db"), umask, str(os.getgid())))
    assert oct(found["folder"]) == oct(found["l.db.run"]) == oct(0o2770)
    assert {oct(found[name]) for name in found if name.startswith("l.db") and name != "l.db.run"} == {oct(0o660)}
    assert {oct(found[name]) for name in ("turn", "turn.next")} == {oct(0o660)}


def test_an_existing_folder_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(0o755)
    create_ledger(folder / "l.db", at_us=NOW_US)
    assert mode(folder) == 0o755
    assert sorted(each.name for each in folder.iterdir()) == ["l.db", "l.db.run"]


def test_a_group_is_refused_a_folder_that_it_could_not_write(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    with pytest.raises(ConfigurationError, match=f"chmod 2770 {folder}"):
        create_ledger(folder / "l.db", group=str(os.getgid()), at_us=NOW_US)
    assert list(folder.iterdir()) == []


def test_an_unknown_group_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no group 'no-such-group-here'"):
        create_ledger(tmp_path / "folder" / "l.db", group="no-such-group-here", at_us=NOW_US)
    assert list(tmp_path.iterdir()) == []


def test_a_second_creation_returns_the_ledger_that_is_there(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    submit(ledger, "op-1")
    before = ledger.meta
    again = create_ledger(ledger.path, journal="delete", at_us=NOW_US + 5)
    assert (again.created, again.journal_mode) == (False, before["journal_mode"])
    ledger.close()
    assert ledger.meta == before
    assert another_program(ledger.path, "SELECT operation_id FROM operation") == [["op-1"]]


@pytest.mark.parametrize("content", [b"", b"hello, this is a letter and no database at all" * 9])
def test_another_file_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "l.db"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=str(path)) as caught:
        create_ledger(path, at_us=NOW_US)
    assert caught.value.exit_code == 78
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["l.db"]


def test_another_programs_database_is_never_taken_for_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    another_program(path, "CREATE TABLE theirs (a)")
    before = path.read_bytes()
    with pytest.raises(SchemaMismatchError, match=r"is not a ledger of settled.*Give the path of a ledger"):
        create_ledger(path, at_us=NOW_US)
    assert path.read_bytes() == before


def test_a_link_to_nothing_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    for name in ("link", "folder"):
        with pytest.raises(ConfigurationError, match=name):
            create_ledger(tmp_path / name, at_us=NOW_US)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "link"]


def test_the_binding_names_this_place_without_naming_the_host(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    assert binding_differs(ledger.meta, ledger.path) == ()
    assert os.uname().nodename not in " ".join(ledger.meta.values())
    copy = tmp_path / "copy.db"
    ledger.close()
    copy.write_bytes(ledger.path.read_bytes())
    assert binding_differs(ledger.meta, copy) == ("bound_inode",)
    assert binding_of(copy)["bound_host"] == host_digest()


def test_a_host_without_a_machine_id_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "fresh").write_text("uninitialized\n")
    (tmp_path / "full").write_text("0123456789abcdef\n")
    nameless = host_digest((tmp_path / "absent",))
    assert host_digest((tmp_path / "empty", tmp_path / "fresh")) == nameless
    assert host_digest((tmp_path / "empty", tmp_path / "full")) != nameless


@pytest.mark.promise("S25", part="init chooses the mode by the version of SQLite")
@pytest.mark.parametrize(
    ("version", "chosen"),
    [((3, 40, 1), "delete"), ((3, 51, 2), "delete"), ((3, 51, 3), "wal"), ((3, 50, 7), "wal"), ((3, 44, 6), "wal")],
)
def test_the_journal_mode_is_chosen_once_and_stored(tmp_path: Path, version: tuple[int, ...], chosen: str) -> None:
    created = create_ledger(tmp_path / "l.db", at_us=NOW_US, module=of_version(*version))
    assert created.journal_mode == chosen
    assert another_program(created.path, "SELECT value FROM meta WHERE key = 'journal_mode'") == [[chosen]]
    assert another_program(created.path, "PRAGMA journal_mode") == [[chosen]]


@pytest.mark.promise("S25", part="a WAL is refused to an affected SQLite")
def test_a_wal_is_refused_to_an_affected_sqlite(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"SQLite 3\.40\.1 can corrupt") as caught:
        create_ledger(tmp_path / "folder" / "l.db", journal="wal", at_us=NOW_US, module=of_version(3, 40, 1))
    assert caught.value.exit_code == 78
    assert list(tmp_path.iterdir()) == []


CREATE_ON_EACH_LINE = """
import pathlib, sys
from settled.store.creation import create_ledger
from settled.store.revisions import apply_migrations
import alembic.command, alembic.config, alembic.script
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(create_ledger(pathlib.Path(line.strip()), at_us=1, group=sys.argv[1] or None).created, flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.mark.parametrize(("rounds", "group"), [(25, ""), (5, str(os.getgid()))])
def test_eight_processes_that_create_at_once_make_one_ledger_and_all_succeed(tmp_path: Path, rounds: int, group: str) -> None:
    children = [Child(CREATE_ON_EACH_LINE, group) for _ in range(8)]
    try:
        assert {child.hear() for child in children} == {"ready"}
        for number in range(rounds):
            path = tmp_path / f"round-{number}" / "l.db"
            for child in children:
                child.tell(str(path))
            assert sorted(child.hear() for child in children) == ["False"] * 7 + ["True"]
            left = {each.name for each in path.parent.iterdir()} - {"l.db-wal", "l.db-shm"}  # the last two to close may leave these
            assert left == {"l.db", "l.db.run"}
    finally:
        for child in children:
            child.__exit__()


def test_threads_of_one_process_create_their_own_ledgers_at_the_same_time(tmp_path: Path) -> None:
    """The migration library keeps what it works on where all threads find it: one would write into another's file."""
    paths = [tmp_path / str(number) / "l.db" for number in range(8)]
    together = threading.Barrier(len(paths))

    def create(path: Path) -> bool:
        together.wait(60)
        return create_ledger(path, at_us=NOW_US).created

    with ThreadPoolExecutor(len(paths)) as pool:
        assert all(pool.map(create, paths))
    for path in paths:
        ledger = Ledger(str(path), monotonic_us=monotonic_us)
        submit(ledger)
        assert verify(ledger) == []
        ledger.close()


STEPPED = """
import os, pathlib, sys
import alembic.command, alembic.config, alembic.script
from settled.store.creation import create_ledger
STEPS = ("os.mkdir", "os.rename", "os.link", "os.remove", "os.chmod", "os.chown", "open", "sqlite3.connect")
step, seen = int(sys.argv[2]), 0
def stop(event, arguments):
    global seen
    if event in STEPS and sys.argv[1] in str(arguments):
        seen += 1
        if seen == step:
            os.kill(os.getpid(), 9)
sys.addaudithook(stop)
print(create_ledger(pathlib.Path(sys.argv[1]) / "folder" / "l.db", at_us=1).created, flush=True)
"""


def test_a_creation_that_is_killed_at_any_step_leaves_no_half_made_ledger(tmp_path: Path) -> None:
    step, ended = 0, False
    while not ended:
        step += 1
        assert step < 60, "the creation never ended by itself"
        place = tmp_path / f"at-{step}"
        place.mkdir()
        with Child(STEPPED, place, step) as child:
            ended = child.hear() == "True"
        path = place / "folder" / "l.db"
        if path.exists():
            assert verify(Ledger(str(path), monotonic_us=monotonic_us)) == []
        create_ledger(path, at_us=NOW_US)
        assert verify(Ledger(str(path), monotonic_us=monotonic_us)) == []
        assert path.stat().st_nlink == 1
        assert (place / "folder" / "l.db.run").is_dir()
    assert step > 5


def test_creation_works_on_the_interpreters_own_sqlite_too(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pysqlite3'] = None\n" + CREATE_OPEN
    found = json.loads(run_python(code, str(tmp_path / "folder" / "l.db"), "022", ""))
    assert oct(found["l.db"]) == oct(0o600)
