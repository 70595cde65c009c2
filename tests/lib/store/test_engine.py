"""The connections of a ledger: safe settings, the right kind of transaction, and nothing that cannot keep a ledger."""

import threading
from pathlib import Path

import pytest

from settled.core.errors import ConfigurationError, LedgerDamagedError, LedgerForbiddenError, LedgerStateError, LedgerUnavailableError
from settled.core.limits import Limits
from settled.store.creation import create_ledger
from settled.store.engine import check_place, file_system_of, ledger_path
from settled.store.failures import translate
from settled.store.ledger import Ledger
from settled.store.sqlite_library import sqlite_module
from tests.lib.store.ledgers import NOW_US, another_program, monotonic_us, new_ledger, submit


@pytest.mark.promise("P20", "D53", part="the settings of every connection")
def test_every_connection_has_the_safe_settings(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    with ledger.read() as one, ledger.write() as other:
        for transaction in (one, other):
            for name, value in {"synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}.items():
                assert transaction.cursor.execute(f"PRAGMA {name}").fetchone()[0] == value, name
            assert transaction.cursor.execute("PRAGMA journal_mode").fetchone()[0] == ledger.meta["journal_mode"]


@pytest.mark.promise("P20", "D53", part="no memory store")
@pytest.mark.parametrize("database", [":memory:", "", "  ", "sqlite://", "sqlite:///:memory:", "file:x?mode=memory", "x?mode=memory", "mysql://h/d"])
def test_a_database_that_cannot_keep_a_ledger_is_refused(database: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Ledger(database, monotonic_us=monotonic_us)
    assert caught.value.exit_code == 78


def test_a_path_and_a_url_mean_the_same_file(tmp_path: Path) -> None:
    assert ledger_path(f"sqlite:///{tmp_path}/l.db") == ledger_path(str(tmp_path / "l.db")) == tmp_path / "l.db"


@pytest.mark.parametrize("name", ["a b.db", "a?mode=ro.db", "a#b.db", "a%20b.db", "ä.db"])
def test_any_file_name_serves(tmp_path: Path, name: str) -> None:
    ledger = new_ledger(tmp_path, name)
    submit(ledger, "op-1")
    ledger.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == [name, f"{name}.run"]


@pytest.mark.promise("P20", "D53", part="what may write takes the write lock at once, what reads takes none")
def test_a_writer_holds_the_write_lock_from_its_start_and_a_reader_never_does(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.engine()
    take = "BEGIN IMMEDIATE"
    with ledger.read() as transaction:
        transaction.cursor.execute("SELECT count(*) FROM operation").fetchone()
        assert another_program(ledger.path, "PRAGMA busy_timeout=0", take, "SELECT 1") == [[1]]
    with ledger.write():
        assert "locked" in another_program(ledger.path, "PRAGMA busy_timeout=0", take, "SELECT 1")
    with ledger.engine().begin():
        assert "locked" in another_program(ledger.path, "PRAGMA busy_timeout=0", take, "SELECT 1")
    with ledger.engine().execution_options(settled_write=False).begin() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM operation")
        assert another_program(ledger.path, "PRAGMA busy_timeout=0", take, "SELECT 1") == [[1]]


@pytest.mark.promise("X3", part="a ledger that is busy beyond the timeout")
def test_a_busy_ledger_is_unavailable_and_nothing_is_recorded(tmp_path: Path) -> None:
    create_ledger(tmp_path / "l.db", at_us=NOW_US)
    holder = Ledger(str(tmp_path / "l.db"), monotonic_us=monotonic_us)
    other = Ledger(str(tmp_path / "l.db"), monotonic_us=monotonic_us, limits=Limits(busy_timeout_seconds=0.05))
    other.engine()
    with holder.write(), pytest.raises(LedgerUnavailableError, match=r"is busy .* Nothing was recorded\. Try again") as caught:
        submit(other, "op-1")
    assert caught.value.exit_code == 75
    submit(other, "op-1")


def test_a_reader_keeps_its_view_while_a_writer_commits(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    if ledger.meta["journal_mode"] != "wal":
        pytest.skip("in DELETE mode a reader makes the writer wait")
    submit(ledger, "op-1")
    with ledger.read() as transaction:
        count = "SELECT count(*) FROM operation"
        assert transaction.cursor.execute(count).fetchone() == (1,)
        writer = threading.Thread(target=submit, args=(ledger, "op-2"))
        writer.start()
        writer.join()
        assert transaction.cursor.execute(count).fetchone() == (1,)
    with ledger.read() as transaction:
        assert transaction.cursor.execute(count).fetchone() == (2,)


@pytest.mark.promise("S27", part="by the table of mounts")
@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    shared = tmp_path / "a share"
    shared.mkdir()
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {str(shared).replace(' ', chr(92) + '040')} {kind} rw 0 0\n")
    assert file_system_of(shared / "deep" / "l.db", mounts) == kind
    with pytest.raises(ConfigurationError, match=f"network file system .{kind}.*Nothing was written") as caught:
        check_place(shared / "l.db", mounts)
    assert caught.value.exit_code == 78
    check_place(tmp_path / "l.db", mounts)
    assert list(shared.iterdir()) == []


def test_a_mount_over_a_mount_counts_as_the_last_one(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"a / ext4 rw 0 0\nb {tmp_path} nfs rw 0 0\nc {tmp_path} tmpfs rw 0 0\n")
    assert file_system_of(tmp_path / "l.db", mounts) == "tmpfs"


def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a directory"):
        Ledger(str(tmp_path), monotonic_us=monotonic_us).engine()


def test_a_file_that_was_damaged_is_a_state_error(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, journal="delete")
    submit(ledger, "op-1")
    ledger.close()
    page = another_program(ledger.path, "SELECT rootpage FROM sqlite_master WHERE name = 'operation'")[0][0]
    content = bytearray(ledger.path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    ledger.path.write_bytes(content)
    with pytest.raises(LedgerDamagedError, match=r"the ledger .* is damaged .*malformed") as caught:
        submit(ledger, "op-2")
    assert (caught.value.path, caught.value.operation_id, caught.value.exit_code) == (str(ledger.path), None, 1)
    assert "operation" not in str(caught.value)
    assert isinstance(caught.value, LedgerStateError)  # whoever leaves what is corrupt alone leaves this alone


def test_a_file_that_may_only_be_read_is_a_matter_of_configuration_and_names_mode_and_owner(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.close()
    module = sqlite_module()
    connection = module.connect(f"file:{ledger.path}?mode=ro", uri=True, isolation_level=None)
    try:
        with pytest.raises(module.Error) as caught:
            connection.execute("DELETE FROM meta")
    finally:
        connection.close()
    ours = translate(caught.value, ledger.path)
    assert isinstance(ours, LedgerForbiddenError) and isinstance(ours, ConfigurationError) and isinstance(ours, LedgerUnavailableError)
    assert ours.exit_code == 78
    assert f"mode 0600 of owner {ledger.path.owner()}" in str(ours)


@pytest.mark.parametrize("url", ["postgresql://ana:hun@ter2/x@host/db", "mysql://h:1/db?x=1&password=hun@ter2", "mysql://ana:hunter2@h"])
def test_a_refused_url_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ledger_path(url)
    assert "hun" not in str(caught.value) and "ter2" not in str(caught.value)


def test_a_url_that_cannot_be_read_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="is no URL"):
        ledger_path("sqlite:here.db")
