"""Runs in the store: inserted one time, moved by whoever saw the last version, forgotten whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled.core.errors import SettledError
from settled.store import agent_runs
from settled.store.agent_runs import RunEvent, RunRow, StepRow, append_events, change_run, change_step, find_run, insert_run, insert_steps
from settled.store.ledger import Ledger
from tests.lib.store.ledgers import another_program, new_ledger
from tests.lib.store.test_statements import plan

RUN = RunRow("run-1", '"task"', "json1:0", "running", None, 0, 1, None, 10, 10)
STEP = StepRow("run-1", 1, 1, "refund", None, "{}", "json1:1", None, None, 0, None, 10)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = new_ledger(tmp_path)
    yield ledger
    ledger.close()


def test_a_run_is_inserted_one_time_and_moved_from_the_version_that_was_seen(ledger: Ledger) -> None:
    with ledger.write() as transaction:
        assert insert_run(transaction, RUN) is True
        assert insert_run(transaction, RUN._replace(task='"other"')) is False
        after = change_run(transaction, RUN, state="waiting", turn=1, updated_us=20)
        assert after == RUN._replace(state="waiting", turn=1, version=2, updated_us=20)
        assert change_run(transaction, RUN, state="completed") is None
        assert find_run(transaction, "run-1") == after
        assert agent_runs.list_runs(transaction, "waiting", 5) == ["run-1"]
        assert find_run(transaction, "run-2") is None


def test_steps_and_numbered_events_go_with_their_run(ledger: Ledger) -> None:
    with ledger.write() as transaction:
        insert_run(transaction, RUN)
        insert_steps(transaction, [STEP, STEP._replace(number=2)])
        done = STEP._replace(status="confirmed", done=1, result="{}", operation_id="order:1:refund", updated_us=30)
        change_step(transaction, done)
        assert agent_runs.read_steps(transaction, "run-1") == [done, STEP._replace(number=2)]
        happened = [RunEvent("run-1", 0, "started"), RunEvent("run-2", 0, "denied"), RunEvent("run-1", 0, "planned")]
        numbered = append_events(transaction, happened)
        assert [event.sequence for event in numbered] == [1, 1, 2]
        assert append_events(transaction, []) == []
        change_run(transaction, RUN, state="failed", reason="denied: refund", updated_us=40)
        assert agent_runs.find_finished_runs(transaction, 40, 5) == []
        assert agent_runs.find_finished_runs(transaction, 41, 5) == ["run-1"]
        agent_runs.forget_runs(transaction, ["run-1"])
        assert find_run(transaction, "run-1") is None
        assert agent_runs.read_steps(transaction, "run-1") == []
        assert [len(agent_runs.read_run_events(transaction, one)) for one in ("run-1", "run-2")] == [0, 1]


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (RUN._replace(state="done"), "state_known"),
        (RUN._replace(state="failed"), "failure_has_a_reason"),
        (RUN._replace(version=0), "counts_natural"),
    ],
)
def test_the_schema_refuses_a_run_that_cannot_be(ledger: Ledger, row: RunRow, rule: str) -> None:
    with pytest.raises(Exception, match=rule) as refused, ledger.write() as transaction:
        insert_run(transaction, row)
    assert not isinstance(refused.value, SettledError) or rule in str(refused.value)


def test_the_audit_of_a_run_cannot_be_rewritten_through_the_schema(ledger: Ledger) -> None:
    with ledger.write() as transaction:
        append_events(transaction, [RunEvent("run-1", 0, "denied")])
    ledger.close()
    assert "agent_event is append-only" in another_program(ledger.path, "UPDATE agent_event SET type = 'confirmed'")


@pytest.mark.parametrize("build", [agent_runs._run, agent_runs._steps, agent_runs._in_state, agent_runs._last, agent_runs._events])
def test_no_statement_of_a_run_scans_or_sorts(ledger: Ledger, build: Any) -> None:
    for step in plan(ledger, build):
        assert not step.startswith("SCAN") and "TEMP B-TREE" not in step, step
