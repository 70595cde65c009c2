"""What a request is: its identity, by contract or by name, alone or many at once."""

import asyncio
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from settled import LedgerUnavailableError, OperationConflictError, ProbeResult, RetryPolicy, Status
from settled.core.moment import at
from tests.lib.apps.bench import ARGUMENTS, KEY, OPERATION_ID, Bench, key_of, locked, run
from tests.lib.store.ledgers import another_program

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


class Text(str):
    """A subclass of str."""


@pytest.mark.promise("P02", "D18")
def test_the_operation_id_function_turns_arguments_into_the_business_identity(bench: Bench) -> None:
    op = bench.effect(lambda: None).submit({"invoice_id": "INV-1042"})
    assert (op.operation_id, op.status, op.created) == ("invoice:INV-1042:capture", Status.PREPARED, True)


@pytest.mark.promise("P02", "D18", "P03", "D26")
@pytest.mark.parametrize("term", ["operation_id", "provider_idempotency_key", "provider_reference"])
@pytest.mark.parametrize("answer", ["", "  ", " x", "x\n", 7, b"x", Text("x")])
def test_an_identity_that_is_blank_padded_or_no_exact_text_is_refused_by_name(bench: Bench, term: str, answer: Any) -> None:
    effect = bench.effect(lambda: None, **{term: lambda a: answer})
    with pytest.raises(ValueError, match=term):
        effect.submit(ARGUMENTS)
    assert bench.submitted() == []


@pytest.mark.promise("P02", "D18")
def test_an_operation_id_function_that_gives_nothing_is_refused(bench: Bench) -> None:
    effect = bench.effect(lambda: None, operation_id=lambda a: None)
    with pytest.raises(ValueError, match="operation_id"):
        effect.submit(ARGUMENTS)
    assert bench.submitted() == []


@pytest.mark.promise("P03", "P47")
def test_handler_and_probe_get_one_key_on_every_attempt_and_it_is_not_the_operation_id(bench: Bench) -> None:
    keys: list[tuple[str, str | None]] = []

    def handler(ctx: Any, idempotency_key: str | None) -> str:
        keys.append((ctx.operation_id, idempotency_key))
        if ctx.attempt < 3:
            raise ConnectionResetError
        return "done"

    def probe(ctx: Any, idempotency_key: str | None) -> ProbeResult:
        keys.append((ctx.operation_id, idempotency_key))
        return ProbeResult.not_committed(terminal=True, healthy=True)

    effect = bench.effect(handler, provider_idempotency_key=key_of, retry=RetryPolicy(max_attempts=3))
    effect.probe(probe)
    effect.submit(ARGUMENTS)
    worker = bench.worker()
    while bench.app.get(OPERATION_ID).status is not Status.CONFIRMED:
        worker.turn()
        worker.reconcile()
        bench.clock.advance(10)
    assert bench.app.get(OPERATION_ID).attempts == 3
    assert set(keys) == {(OPERATION_ID, KEY)}
    assert KEY != OPERATION_ID
    assert len(bench.submitted()) == 1


@pytest.mark.promise("P03")
def test_a_contract_without_a_key_function_gives_no_key(bench: Bench) -> None:
    got: list[str | None] = []
    bench.app.execute(bench.effect(lambda idempotency_key: got.append(idempotency_key)), ARGUMENTS)
    assert got == [None]


@pytest.mark.promise("X5")
@pytest.mark.parametrize("term", ["operation_id", "provider_idempotency_key", "provider_reference"])
def test_an_identity_that_is_not_stable_is_refused_and_nothing_is_minted_instead(bench: Bench, term: str) -> None:
    unstable = bench.effect(lambda: None, **{term: lambda a: str(uuid.uuid4())})
    with pytest.raises(ValueError, match=term):
        unstable.submit(ARGUMENTS)
    missing = bench.effect(lambda: None, name="other", **{term: lambda a: a["no such field"]})
    with pytest.raises(ValueError, match=term) as refused:
        missing.submit(ARGUMENTS)
    assert isinstance(refused.value.__cause__, KeyError)
    assert bench.submitted() == []


@pytest.mark.promise("P10", "D24", "X6", part="the library's errors; the exit code is shown with the command line")
def test_reuse_of_an_id_names_the_first_thing_that_differs_and_changes_nothing(bench: Bench) -> None:
    calls: list[int] = []
    terms: dict[str, Any] = {"provider_idempotency_key": key_of, "provider_reference": lambda a: "ref"}
    first = bench.effect(lambda: calls.append(1), **terms)
    first.submit(ARGUMENTS)
    before = bench.app.get(OPERATION_ID), bench.app.events(OPERATION_ID)
    other_amount = ARGUMENTS | {"amount": 1}
    changes: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("contract", {"name": "other", "version": "2"}, other_amount),
        ("version", {"version": "2", "provider_idempotency_key": lambda a: "k2"}, other_amount),
        ("request", {"provider_idempotency_key": lambda a: "k2"}, other_amount),
        ("provider key", {"provider_idempotency_key": lambda a: "k2", "provider_reference": lambda a: "r2"}, ARGUMENTS),
        ("provider reference", {"provider_reference": lambda a: "r2"}, ARGUMENTS),
    ]
    for differs, change, arguments in changes:
        again = bench.effect(lambda: calls.append(1), app=bench.again(), **terms | change)
        for ask in (again.submit, again.execute):
            with pytest.raises(OperationConflictError) as conflict:
                ask(arguments)
            assert (conflict.value.operation_id, conflict.value.differs) == (OPERATION_ID, differs)
            assert conflict.value.exit_code == 4
            if differs == "request":
                assert conflict.value.existing_fingerprint == before[0].fingerprint != conflict.value.requested_fingerprint
    assert (bench.app.get(OPERATION_ID), bench.app.events(OPERATION_ID)) == before
    assert calls == []


@pytest.mark.promise("P10", "P70", part="submit only")
def test_a_key_with_another_amount_is_a_conflict_and_the_first_request_is_still_there(bench: Bench) -> None:
    effect = bench.effect(lambda: None)
    first = effect.submit({"invoice_id": "INV-1042", "amount": 10})
    with pytest.raises(OperationConflictError) as conflict:
        effect.submit({"invoice_id": "INV-1042", "amount": 11})
    assert OPERATION_ID in str(conflict.value)
    again = effect.submit({"amount": 10, "invoice_id": "INV-1042"})
    assert (again.created, again.fingerprint) == (False, first.fingerprint)
    assert bench.submitted() == [OPERATION_ID]


@pytest.mark.promise("P10", part="repeats that are read, while nobody may write")
def test_who_repeats_requests_reads_them_and_a_new_or_another_one_is_still_told_apart(bench: Bench) -> None:
    app = bench.impatient()
    effect = bench.effect(lambda: None, app=app, operation_id=lambda a: f"op-{a['n']}")
    first = [effect.submit({"n": n}) for n in range(3)]
    assert effect.submit({"n": 0}).created is False
    with locked(bench):
        again = [effect.submit({"n": n}) for n in range(3)]
        assert [(one.operation_id, one.created, one.status) for one in again] == [(f"op-{n}", False, Status.PREPARED) for n in range(3)]
        assert [one.version for one in again] == [one.version for one in first]
        assert [one.created for one in app.submit_many([(effect, {"n": 2}), (effect, {"n": 1})])] == [False, False]
        with pytest.raises(LedgerUnavailableError):
            app.submit_many([(effect, {"n": 2}), (effect, {"n": 3})])
        with pytest.raises(LedgerUnavailableError):
            effect.submit({"n": 4})
    with pytest.raises(OperationConflictError):
        effect.submit({"n": 0, "another": True})
    assert effect.submit({"n": 4}).created is True
    assert sorted(bench.submitted()) == ["op-0", "op-1", "op-2", "op-4"]


@pytest.mark.promise("D17")
def test_one_id_is_one_operation_whoever_submits_it_and_from_which_process(bench: Bench) -> None:
    bench.effect(lambda: None)
    bench.app.submit("capture_payment", ARGUMENTS)
    other = bench.effect(lambda: None, name="send_mail", app=bench.again())
    with pytest.raises(OperationConflictError) as conflict:
        other.submit(ARGUMENTS)
    assert conflict.value.differs == "contract"
    code = "import json, sys; from paying import submit; print(submit(json.loads(sys.argv[1])).created)"
    assert run(code, '{"invoice_id": "INV-1042", "amount": 2500}', database=bench.app.ledger.path) == "False"
    assert len(bench.submitted()) == 1


@pytest.mark.promise("D26")
def test_a_provider_reference_is_derived_once_stored_and_never_inferred(bench: Bench) -> None:
    effect = bench.effect(lambda: None, provider_idempotency_key=key_of, provider_reference=lambda a: f"ref-{a['invoice_id']}")
    assert effect.submit(ARGUMENTS).provider_reference == "ref-INV-1042"
    other = bench.effect(lambda: None, app=bench.again(), provider_idempotency_key=key_of, provider_reference=lambda a: "else")
    with pytest.raises(OperationConflictError) as conflict:
        other.submit(ARGUMENTS)
    assert conflict.value.differs == "provider reference"
    assert bench.app.get(OPERATION_ID).provider_reference == "ref-INV-1042"
    plain = bench.effect(lambda: None, name="plain", provider_idempotency_key=key_of)
    assert plain.submit(ARGUMENTS, operation_id="plain-1").provider_reference is None


@pytest.mark.promise("S84", part="submit(connection=…) with another driver module")
def test_a_connection_of_another_sqlite_library_is_refused_by_name(bench: Bench, tmp_path: Path) -> None:
    code = """
import sys
import sqlalchemy as sa
from typing_extensions import TypedDict
from settled import App, ConfigurationError
app = App(sys.argv[1])
if app.ledger.module().__name__ == "sqlite3":
    print("app.engine()")
else:
    engine = sa.create_engine("sqlite:///" + sys.argv[2])
    with engine.connect() as connection:
        try:
            app.submit("capture_payment", {}, operation_id="x", connection=connection)
        except ConfigurationError as error:
            print(error)
"""
    assert "app.engine()" in run(code, bench.app.ledger.path, tmp_path / "elsewhere.db")
    assert bench.submitted() == []


@pytest.mark.promise("S15", part="the library; the command line is shown elsewhere")
def test_a_request_by_name_is_derived_by_a_worker_before_its_claim(bench: Bench) -> None:
    with pytest.raises(ValueError, match="operation_id"):
        bench.app.submit("capture_payment", ARGUMENTS)
    op = bench.app.submit("capture_payment", ARGUMENTS, operation_id="x")
    assert (op.status, op.contract_version, op.provider_reference) == (Status.PREPARED, None, None)
    got: list[str] = []
    working = bench.again()
    terms: dict[str, Any] = {"provider_idempotency_key": key_of, "provider_reference": lambda a: "ref"}
    bench.effect(lambda idempotency_key: got.append(idempotency_key), app=working, **terms)
    worker = bench.worker(working)
    assert worker.turn() == 0
    worker.reconcile()
    derived = bench.app.get("x")
    assert (derived.status, derived.contract_version, derived.provider_reference) == (Status.PREPARED, "1", "ref")
    assert worker.turn() == 1
    assert got == [KEY]
    assert bench.app.get("x").status is Status.CONFIRMED


@pytest.mark.promise("S15", part="what cannot be derived")
def test_a_request_by_name_that_does_not_fit_its_contract_is_held(bench: Bench) -> None:
    bench.app.submit("capture_payment", {"other": 1}, operation_id="x")
    working = bench.again()
    bench.effect(lambda: None, app=working, provider_idempotency_key=key_of)
    worker = bench.worker(working)
    worker.reconcile()
    assert worker.turn() == 0
    op = bench.app.get("x")
    assert (op.status, op.reason, op.attempts) == (Status.PREPARED, "contract_mismatch", 0)
    assert bench.types("x") == ["submitted", "held"]


@pytest.mark.promise("S15", part="the same request by name and by contract, with fields that do not count")
@pytest.mark.parametrize("derived_meanwhile", [False, True])
def test_a_request_by_name_and_the_same_by_its_contract_are_one(bench: Bench, derived_meanwhile: bool) -> None:
    working = bench.again()
    effect = bench.effect(lambda: None, app=working, identity_fields=("invoice_id",))
    bench.app.submit("capture_payment", ARGUMENTS, operation_id=OPERATION_ID)
    if derived_meanwhile:
        bench.worker(working).reconcile()
    assert effect.submit(ARGUMENTS).created is False
    assert bench.app.submit("capture_payment", ARGUMENTS, operation_id=OPERATION_ID).created is False
    with pytest.raises(OperationConflictError):
        bench.app.submit("capture_payment", {"invoice_id": "INV-1"}, operation_id=OPERATION_ID)


@pytest.mark.promise("S80")
def test_many_requests_are_one_transaction_in_their_order(bench: Bench) -> None:
    effect = bench.effect(lambda: None, operation_id=lambda a: f"op-{a['n']}")
    known = [3, 500, 996]
    numbers = list(range(997))
    batch = [(effect, {"n": n}) for n in [*numbers[:600], *known, *numbers[600:]]]
    # The three repeated ones stand where they repeat something of this batch, or come in it later for the first time.
    seals = "SELECT count(*) FROM seal"
    before = another_program(bench.app.ledger.path, seals)[0][0]
    ops = bench.app.submit_many(batch)
    assert [op.operation_id for op in ops] == [f"op-{arguments['n']}" for _, arguments in batch]
    assert sum(op.created for op in ops) == 997
    assert len(bench.submitted()) == 997
    assert another_program(bench.app.ledger.path, seals)[0][0] == before + 1


@pytest.mark.promise("S80")
@pytest.mark.parametrize("bad", [{"n": object()}, {"n": 1, "amount": 2}, {}])
def test_one_bad_request_names_its_place_and_stores_nothing_of_the_batch(bench: Bench, bad: dict[str, Any]) -> None:
    effect = bench.effect(lambda: None, operation_id=lambda a: f"op-{a['n']}")
    effect.submit({"n": 1})
    with pytest.raises((TypeError, ValueError, OperationConflictError)) as refused:
        bench.app.submit_many([(effect, {"n": 7}), {"contract": effect, "arguments": {"n": 8}}, (effect, bad), (effect, {"n": 9})])
    assert refused.value.index == 2  # type: ignore[union-attr]
    assert bench.submitted() == ["op-1"]


@pytest.mark.parametrize(("exact", "hours"), [(LAST, -12), (FIRST, 12)], ids=["last", "first"])
def test_a_deadline_that_no_calendar_holds_in_utc_is_refused_and_its_very_end_is_kept_exactly(
    bench: Bench, exact: datetime, hours: int
) -> None:
    effect = bench.effect(lambda: None)
    with pytest.raises(ValueError, match=r"deadline .* Nothing was stored"):
        effect.submit(ARGUMENTS, deadline=exact.replace(tzinfo=timezone(timedelta(hours=hours))))
    assert bench.submitted() == []
    assert effect.submit(ARGUMENTS, deadline=exact).deadline == exact
    assert [one.deadline for one in bench.app.list()] == [exact]


@pytest.mark.parametrize("stored", [10**18, -(10**18), 2**63 - 1, -(2**63)])
def test_a_stored_time_beyond_the_calendar_is_shown_as_its_end(stored: int) -> None:
    assert at(stored) == (FIRST if stored < 0 else LAST)


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), float("-inf"), 1e300, "1"])
def test_no_wait_is_without_an_end(bench: Bench, timeout: Any) -> None:
    bench.effect(lambda: None).submit(ARGUMENTS)
    with pytest.raises(ValueError, match="timeout must be seconds"):
        bench.app.wait(OPERATION_ID, timeout=timeout)
    with pytest.raises(ValueError, match="timeout must be seconds"):
        asyncio.run(bench.app.await_result(OPERATION_ID, timeout=timeout))
