"""An SQLite with the WAL-reset defect never works on a WAL ledger, and both ways out of it work."""

from pathlib import Path

import pytest

from settled.core.errors import ConfigurationError, LedgerUnavailableError, SchemaMismatchError
from settled.store.engine import refuse_affected_wal
from settled.store.journal import set_journal
from settled.store.sqlite_library import library_version, sqlite_module, wal_is_safe
from tests.lib.store.ledgers import another_program, new_ledger, run_python, submit
from tests.lib.store.test_creation import of_version

needs_wal = pytest.mark.skipif(not wal_is_safe(library_version(sqlite_module())), reason="this SQLite must not write a WAL")


@pytest.mark.promise("S25", part="which versions are affected")
@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 6, 23), True), ((3, 7, 0), False), ((3, 40, 1), False), ((3, 44, 5), False), ((3, 44, 6), True), ((3, 45, 0), False),
        ((3, 50, 6), False), ((3, 50, 7), True), ((3, 51, 0), False), ((3, 51, 2), False), ((3, 51, 3), True), ((3, 53, 4), True),
        ((4, 0, 0), True),
    ],
)  # fmt: skip
def test_the_affected_versions_are_known(version: tuple[int, ...], safe: bool) -> None:
    assert wal_is_safe(version) is safe


@needs_wal
@pytest.mark.promise("S25", part="an affected SQLite refuses a WAL ledger, names both ways out, and changes no byte")
def test_an_affected_sqlite_refuses_a_wal_ledger_before_it_opens_it(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, journal="wal")
    submit(ledger, "op-1")
    ledger.close()
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()}
    with pytest.raises(ConfigurationError, match=r"3\.40\.1 can corrupt.*pip install pysqlite3.*settled db journal delete") as caught:
        refuse_affected_wal(ledger.path, of_version(3, 40, 1))
    assert caught.value.exit_code == 78
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()} == before


OLD = """
import sys
sys.modules["pysqlite3"] = None
from pathlib import Path
from settled.core.errors import ConfigurationError
from settled.store.journal import set_journal
from settled.store.ledger import Ledger
from settled.store.sqlite_library import library_version, sqlite_module, wal_is_safe
if wal_is_safe(library_version(sqlite_module())):
    print("safe")
    sys.exit()
ledger = Ledger(sys.argv[1], monotonic_us=lambda: 0)
try:
    ledger.engine()
except ConfigurationError as error:
    print("refused", error.exit_code)
print(set_journal(ledger.path, "delete"))
print(ledger.meta["journal_mode"], ledger.meta["journal_mode_chosen"])
with ledger.read() as transaction:
    print(transaction.cursor.execute("SELECT count(*) FROM operation").fetchone()[0])
"""


@needs_wal
def test_a_really_affected_sqlite_is_refused_and_led_out_of_the_wal(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, journal="wal")
    submit(ledger, "op-1", "op-2")
    ledger.close()
    said = run_python(OLD, str(ledger.path)).split("\n")
    if said[0] == "safe":
        pytest.skip("the interpreter's own SQLite is not affected")
    assert said[:4] == ["refused 78", "wal", "delete delete", "2"]


@needs_wal
def test_the_mode_goes_both_ways_and_is_stored_as_it_was_answered(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, journal="wal")
    submit(ledger, "op-1")
    ledger.close()
    assert set_journal(ledger.path, "delete") == "wal"
    assert another_program(ledger.path, "PRAGMA journal_mode") == [["delete"]]
    assert ledger.meta["journal_mode"] == "delete"
    ledger.close()
    assert set_journal(ledger.path, "wal") == "delete"
    assert set_journal(ledger.path, "wal") == "wal"
    assert (ledger.meta["journal_mode"], ledger.meta["journal_mode_chosen"]) == ("wal", "wal")
    submit(ledger, "op-2")


@needs_wal
def test_the_mode_is_not_changed_under_somebody_who_has_it_open(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, journal="wal")
    submit(ledger, "op-1")
    with pytest.raises(LedgerUnavailableError, match="is open elsewhere"):
        set_journal(ledger.path, "delete", busy_timeout_seconds=0.1)
    submit(ledger, "op-2")
    assert ledger.meta["journal_mode"] == "wal"
    assert another_program(ledger.path, "PRAGMA journal_mode") == [["wal"]]


def test_a_wal_is_refused_to_an_affected_sqlite_here_too(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, journal="delete")
    with pytest.raises(ConfigurationError, match="--journal delete"):
        set_journal(ledger.path, "wal", module=of_version(3, 40, 1))


@needs_wal
@pytest.mark.promise("S25", part="a mode that is not the chosen one is seen, not assumed; opening changes nothing")
def test_a_mode_that_another_program_changed_is_seen(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, journal="wal")
    ledger.close()
    assert another_program(ledger.path, "PRAGMA journal_mode=delete") == [["delete"]]
    assert (ledger.meta["journal_mode"], ledger.meta["journal_mode_chosen"]) == ("delete", "wal")
    ledger.close()
    assert another_program(ledger.path, "PRAGMA journal_mode") == [["delete"]]


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "is not a ledger of settled"), (b"Dear Sir or Madam, " * 100, "is not a SQLite database")]
)
def test_what_is_no_database_keeps_its_bytes(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "letter.db"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=says):
        set_journal(path, "delete")
    assert path.read_bytes() == content


def test_a_newer_ledger_keeps_its_mode_and_names_the_newer_settled(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, journal="delete")
    ledger.close()
    another_program(ledger.path, "UPDATE alembic_version SET version_num = '9999'")
    before = ledger.path.read_bytes()
    with pytest.raises(SchemaMismatchError, match="Use the newer settled") as caught:
        set_journal(ledger.path, "wal" if wal_is_safe(library_version(sqlite_module())) else "delete")
    assert caught.value.exit_code == 78
    assert ledger.path.read_bytes() == before


def test_what_is_no_ledger_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    another_program(path, "CREATE TABLE theirs (a)")
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="is not a ledger"):
        set_journal(path, "wal" if wal_is_safe(library_version(sqlite_module())) else "delete")
    assert path.read_bytes() == before
