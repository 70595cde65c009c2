"""The schema's revision is checked on every opening and moved only by an explicit upgrade."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from settled.core.errors import ConfigurationError, SchemaMismatchError
from settled.store.ledger import Ledger
from settled.store.revisions import HEAD, upgrade
from settled.store.schema import APPEND_ONLY, metadata
from tests.lib.store.ledgers import another_program, monotonic_us, new_ledger, run_python, submit


def test_the_constant_is_the_head_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", "settled.store:migrations")
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_a_migrated_ledger_has_exactly_the_schema_of_the_code(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    with ledger.engine().connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata) == []
    ledger.close()
    stored = another_program(ledger.path, "SELECT sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name")
    assert sorted(row[0] for row in stored) == sorted(APPEND_ONLY)
    loose = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND strict = 0 AND name NOT LIKE 'sqlite%'"
    assert another_program(ledger.path, loose) == [["alembic_version"]]


@pytest.mark.promise("P11", "D55", part="opening never migrates: another revision is refused, exit 78, file unchanged")
@pytest.mark.parametrize("found", ["0000", "9999"])
def test_another_revision_is_refused_and_the_file_stays_as_it_is(tmp_path: Path, found: str) -> None:
    ledger = new_ledger(tmp_path)
    ledger.close()
    another_program(ledger.path, f"UPDATE alembic_version SET version_num = '{found}'", "PRAGMA wal_checkpoint(TRUNCATE)")
    before = ledger.path.read_bytes()
    for attempt in (ledger.engine, lambda: upgrade(ledger.path)):
        with pytest.raises(SchemaMismatchError) as caught:
            attempt()
        assert (caught.value.found, caught.value.expected, caught.value.exit_code) == (found, HEAD, 78)
    assert ledger.path.read_bytes() == before


def test_an_upgrade_with_nothing_to_do_changes_nothing(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    submit(ledger, "op-1")
    ledger.close()
    before = another_program(ledger.path, "SELECT * FROM event")
    assert upgrade(ledger.path) == (HEAD, HEAD)
    assert another_program(ledger.path, "SELECT * FROM event") == before


def test_no_migration_runs_on_another_programs_database(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    another_program(path, "CREATE TABLE theirs (a)")
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"is not a ledger of settled\. Nothing was changed"):
        upgrade(path)
    assert path.read_bytes() == before


def test_a_missing_ledger_is_not_made_by_opening_or_upgrading(tmp_path: Path) -> None:
    path = tmp_path / "absent.db"
    for attempt in (Ledger(str(path), monotonic_us=monotonic_us).engine, lambda: upgrade(path)):
        with pytest.raises(ConfigurationError, match="settled init"):
            attempt()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_a_configuration_error_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_bytes(b"Dear Sir or Madam, " * 100)
    for attempt in (Ledger(str(path), monotonic_us=monotonic_us).engine, lambda: upgrade(path)):
        with pytest.raises(ConfigurationError, match="is not a SQLite database") as caught:
            attempt()
        assert caught.value.exit_code == 78
    assert path.read_bytes() == b"Dear Sir or Madam, " * 100


def test_opening_a_ledger_does_not_load_the_migration_library(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    code = """
import sys
from settled.store.ledger import Ledger
Ledger(sys.argv[1], monotonic_us=lambda: 0).engine()
print("alembic" in sys.modules)
"""
    assert run_python(code, str(ledger.path)) == "False\n"
