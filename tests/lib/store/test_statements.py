"""Every statement of the store compiles for both databases, and none of those that run often grows with history."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

import settled.store
from settled import App
from settled.store import (
    incidents,
    old_incidents,
    outbox,
    pauses,
    reads,
    requests,
    sealing,
    snapshots,
    sweep_runs,
    unknowns,
    waiting,
    workers,
    writer,
)  # fmt: skip
from settled.store.ledger import Ledger
from settled.store.prepared import built
from tests.lib.store.ledgers import new_ledger, settle, submit


def builders() -> Iterator[tuple[str, Callable[..., sa.ClauseElement]]]:
    """Yield every function of the store that builds a statement."""
    for found in pkgutil.iter_modules(settled.store.__path__):
        if found.ispkg:
            continue
        module = importlib.import_module(f"settled.store.{found.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            parameters = inspect.signature(function).parameters
            builds = inspect.signature(function).return_annotation is sa.ClauseElement and set(parameters) <= {"dialect"}
            if builds and function.__module__ == module.__name__:
                yield f"{found.name}.{name}", function


BUILDERS = dict(builders())


def test_the_statements_are_found() -> None:
    assert len(BUILDERS) > 40
    assert {"waiting._ready", "writer._guarded_update", "requests._insert_operation", "sealing._move_tally"} <= BUILDERS.keys()


@pytest.mark.promise("P21", part="every statement compiles for PostgreSQL")
@pytest.mark.parametrize("name", BUILDERS)
def test_every_statement_compiles_for_both_databases(name: str) -> None:
    for dialect in (sqlite.dialect(), postgresql.dialect()):
        assert str(built(BUILDERS[name], dialect).compile(dialect=dialect))


@pytest.mark.promise("P21", part="the schema compiles for PostgreSQL")
def test_the_schema_compiles_for_postgresql() -> None:
    from settled.store.schema import metadata, tell_partial

    tell_partial("postgresql")
    for table in metadata.sorted_tables:
        assert str(sa.schema.CreateTable(table).compile(dialect=postgresql.dialect()))
        for index in table.indexes:
            made = str(sa.schema.CreateIndex(index).compile(dialect=postgresql.dialect()))
            assert ("WHERE" in made) == ("where" in index.info), "it would cover all of the history"


def test_a_program_that_declares_and_submits_imports_no_dialect_that_it_does_not_use(tmp_path: Path) -> None:
    App(tmp_path / "x.db").create_database()
    code = (
        "import sys; from settled import App, EffectContract; app = App(sys.argv[1]); "
        "app.submit(EffectContract(name='pay', operation_id=lambda _: 'pay:1'), {}); "
        "print(*(name for name in sys.modules if 'postgresql' in name or name == 'sqlalchemy'))"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.db")], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "sqlalchemy"


HOT = [
    *(function for name, function in BUILDERS.items() if name.startswith("waiting.")),
    pauses._paused, reads._by_operation_id, reads._by_id, reads._by_reference, reads._events_of, reads._payload_of, reads._highest_wall,
    reads._listed, reads._oldest, reads._inbox_of, writer._guarded_update, requests._insert_operation,
    sealing._last_seal, unknowns._oldest_unknown, reads._first_event, snapshots._id_of, workers._live, workers._by_id,
    sweep_runs._latest_of, sweep_runs._first_name, sweep_runs._next_name,
]  # fmt: skip


@pytest.mark.parametrize("build", HOT, ids=lambda build: f"{build.__module__.rpartition('.')[2]}.{build.__name__}")
def test_no_statement_that_runs_often_is_planned_anew_at_each_run(filled: Ledger, build: Callable[..., Any]) -> None:
    """SQLite plans anew when a parameter is bound again whose value it looked at: after LIMIT, or beside a partial index' own."""
    dialect = filled.engine().dialect
    compiled = built(build, dialect).compile(dialect=dialect)
    assert "LIMIT ?" not in str(compiled)
    assert [name for name, value in compiled.params.items() if value is not None] == [], "a constant stands in the statement itself"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A ledger with some history."""
    ledger = new_ledger(tmp_path_factory.mktemp("plans"))
    settle(ledger, *submit(ledger, *(f"op-{number}" for number in range(300))))
    submit(ledger, *(f"waits-{number}" for number in range(3)))
    return ledger


@pytest.mark.promise("S86", part="the counts come from the tally and read no operation")
def test_counting_reads_the_tally_alone(filled: Ledger) -> None:
    assert plan(filled, reads._counted) == ["SCAN tally"]


@pytest.mark.parametrize("build", HOT, ids=lambda build: f"{build.__module__.rpartition('.')[2]}.{build.__name__}")
def test_no_statement_that_runs_often_scans_a_table_or_sorts(filled: Ledger, build: Callable[..., Any]) -> None:
    steps = plan(filled, build)
    for step in steps:
        small = any(step.startswith(f"SCAN {table} USING") for table in ("operation", "worker", "seal", "sweep_run", "pause"))
        partial = any(f"USING {kind}INDEX ix_operation_" in step for kind in ("", "COVERING "))
        partial = partial or any(name in step for name in ("ix_worker_live", "ix_pause_active"))
        bounded = "LIMIT" in text(filled, build) and not step.startswith("SCAN operation")
        assert not step.startswith("SCAN") or (small and partial) or bounded, steps
        assert "TEMP B-TREE" not in step, steps


def text(ledger: Ledger, build: Callable[..., Any]) -> str:
    dialect = ledger.engine().dialect
    return str(built(build, dialect).compile(dialect=dialect))


def plan(ledger: Ledger, build: Callable[..., Any]) -> list[str]:
    """Return the steps that SQLite would take, with every value NULL: a plan does not depend on values that are bound."""
    statement = text(ledger, build)
    with ledger.read() as transaction:
        steps = transaction.cursor.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * statement.count("?")).fetchall()
    return [step[3] for step in steps]


def test_the_indexes_of_what_waits_are_used_by_name(filled: Ledger) -> None:
    expected = {
        waiting._ready: "ix_operation_ready",
        waiting._first_due: "ix_operation_ready",
        waiting._highest_priority: "ix_operation_ready",
        waiting._next_priority: "ix_operation_ready",
        waiting._probe_due: "ix_operation_probe_due",
        waiting._next_probe: "ix_operation_probe_due",
        waiting._owners: "ix_operation_leased",
        waiting._leased: "ix_operation_leased",
        waiting._ready_in_open_queues: "ix_operation_ready",
        waiting._reopened: "ix_operation_reopened",
        pauses._paused: "ix_pause_active",
        waiting._running: "ix_operation_leased",
        waiting._unfenced: "ix_operation_unfenced",
        waiting._escalating: "ix_operation_escalate",
        waiting._expired: "ix_operation_deadline",
        waiting._underived: "ix_operation_underived",
        waiting._probe_owners: "ix_operation_probed",
        waiting._release_all: "ix_operation_probed",
        reads._listed: "ix_operation_listed",
        reads._by_reference: "ix_operation_reference",
    }
    for build, index in expected.items():
        assert any(index in step for step in plan(filled, build)), (build.__name__, plan(filled, build))


def test_what_the_telling_asks_every_second_walks_only_what_is_open_or_undelivered(filled: Ledger) -> None:
    expected = {
        incidents._due: "ix_incident_due",
        incidents._open_of_contracts: "uq_incident_open",
        incidents._all_open: "ix_incident_open",
        incidents._count_open: "ix_incident_open",
        incidents._of_operation: "ix_incident_operation",
        incidents._last_of_contract: "ix_incident_contract",
        outbox._wanted: "ix_notification_wanted",
        outbox._told: "uq_notification_once",
        outbox._of_incident: "uq_notification_once",
        outbox._channels_due: "ix_notification_undelivered",
        outbox._next: "ix_notification_undelivered",
        outbox._queued: "ix_notification_undelivered",
        outbox._undelivered: "ix_notification_undelivered",
        outbox._singles: "ix_notification_recent",
        outbox._last_digest: "ix_notification_recent",
        outbox._owners: "ix_notification_sending",
        outbox._release_all: "ix_notification_sending",
        outbox._members_arrived: "ix_notification_digest",
        unknowns._open_unknown: "ix_operation_unknown",
        old_incidents._closed_before: "ix_incident_closed",
        old_incidents._digests_before: "ix_notification_told_together",
        old_incidents._forget_told: "uq_notification_once",
    }
    for build, index in expected.items():
        assert any(index in step for step in plan(filled, build)), (build.__name__, plan(filled, build))
