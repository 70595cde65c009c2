"""A copied ledger dispatches nothing until somebody takes it over on the record."""

import shutil
from pathlib import Path

import pytest

from settled import App, Operation, ProbeResult, Status, TransitionRefusedError
from settled.core.errors import SettledError
from settled.steps.adopt import NothingToAdoptError
from settled.store.agent_runs import RunRow, find_run, insert_run, read_run_events
from settled.store.audit import verify


def declare(app: App, calls: list[str]) -> None:
    @app.effect(name="pay", operation_id=lambda a: f"pay:{a['n']}", isolation="thread", network_drain=0)
    def pay(arguments: dict[str, int]) -> dict[str, int]:
        calls.append(f"pay:{arguments['n']}")
        return {"paid": arguments["n"]}

    @pay.probe
    def look() -> ProbeResult:
        return ProbeResult.not_committed(terminal=True, healthy=True)


def copied(tmp_path: Path) -> tuple[App, list[str]]:
    original = App(tmp_path / "a" / "settled.db")
    declare(original, [])
    original.create_database()
    original.submit("pay", {"n": 1})
    original.execute("pay", {"n": 2})
    original.close()
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "settled.db", tmp_path / "b" / "settled.db")
    calls: list[str] = []
    copy = App(tmp_path / "b" / "settled.db")
    declare(copy, calls)
    return copy, calls


def run_once(app: App, n: int) -> Operation:
    return app.execute("pay", {"n": n})


@pytest.mark.promise("S114", part="nothing is dispatched from a copy, and adopting marks every unsettled operation")
def test_a_copy_dispatches_nothing_until_it_is_adopted(tmp_path: Path) -> None:
    app, calls = copied(tmp_path)
    assert run_once(app, 1).status is Status.PREPARED
    assert run_once(app, 3).status is Status.PREPARED  # neither what it brought nor what is new
    assert calls == []
    with pytest.raises(ValueError, match="reason"):
        app.adopt(reason=" ")
    assert app.adopt(reason="the old disk died") == 2
    assert [one.status for one in (app.get("pay:1"), app.get("pay:2"), app.get("pay:3"))] == [
        Status.OUTCOME_UNKNOWN,
        Status.CONFIRMED,
        Status.OUTCOME_UNKNOWN,
    ]
    assert [event.type for event in app.events("pay:1")] == ["submitted", "restored"]
    assert run_once(app, 4).status is Status.CONFIRMED  # what is new works
    assert calls == ["pay:4"]
    assert verify(app.ledger) == []
    app.close()


@pytest.mark.promise("S113", part="absence never counts, and a person's retry needs the assertion")
def test_an_absence_never_closes_what_may_have_been_dispatched_after_the_copy(tmp_path: Path) -> None:
    app, calls = copied(tmp_path)
    app.adopt(reason="restored")
    for _ in range(3):
        assert app.reconcile("pay:1").status is Status.OUTCOME_UNKNOWN
    op = app.get("pay:1")
    assert {one["facts"].get("why") for one in op.evidence} == {"no_fence"}
    words = {"actor": "ana", "reason": "never sent", "evidence_reference": "T-1", "expected_version": op.version}
    with pytest.raises(TransitionRefusedError):
        app.authorize_retry("pay:1", **words)
    app.authorize_retry("pay:1", **words, assert_nothing_can_arrive=True)
    assert run_once(app, 1).status is Status.CONFIRMED
    assert calls == ["pay:1"]
    assert verify(app.ledger) == []
    app.close()


@pytest.mark.promise("S136", part="the rows stay, and the assertion is kept")
def test_a_moved_ledger_goes_on_where_it_was(tmp_path: Path) -> None:
    app, calls = copied(tmp_path)
    assert app.adopt(reason="new host", moved=True) == 0
    assert run_once(app, 1).status is Status.CONFIRMED
    assert calls == ["pay:1"]
    assert '"moved": true' in app.ledger.meta["adoption:1"]
    assert "new host" in app.ledger.meta["adoption:1"]
    with pytest.raises(NothingToAdoptError) as refused:
        app.adopt(reason="again", moved=True)
    assert isinstance(refused.value, SettledError)
    assert refused.value.exit_code == 4
    app.close()


@pytest.mark.parametrize(("moved", "state", "reason"), [(False, "failed", "restored"), (True, "waiting", None)])
def test_a_run_goes_on_from_a_moved_ledger_and_not_from_a_copy(tmp_path: Path, moved: bool, state: str, reason: str | None) -> None:
    (tmp_path / "a").mkdir()
    original = App(tmp_path / "a" / "settled.db")
    original.create_database()
    with original.ledger.write() as transaction:
        insert_run(transaction, RunRow("run-1", "null", "json1:0", "waiting", None, 1, 4, None, 1, 1))
        insert_run(transaction, RunRow("run-2", "null", "json1:0", "completed", None, 1, 4, None, 1, 1))
    original.close()
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "settled.db", tmp_path / "b" / "settled.db")
    copy = App(tmp_path / "b" / "settled.db")
    copy.adopt(reason="the host is new", moved=moved)
    with copy.ledger.read() as transaction:
        one, other = (find_run(transaction, run_id) for run_id in ("run-1", "run-2"))
        events = [(event.type, event.status) for event in read_run_events(transaction, "run-1")]
    copy.close()
    assert one is not None and other is not None
    assert (one.state, one.reason, other.state) == (state, reason, "completed")
    assert events == ([] if moved else [("failed", "restored")])
