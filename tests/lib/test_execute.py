"""Running in the caller's own process: repeats beside a live owner, a store that fails, and a caller that dies."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from settled import (
    ConfigurationError,
    ContractNotFoundError,
    EffectContract,
    EffectRejected,
    LedgerUnavailableError,
    OperationConflictError,
    ProbeResult,
    Status,
)
from settled.core.limits import Limits
from settled.core.moment import Moment
from settled.execution.calls import Calls as InlineCalls
from settled.store.audit import verify
from tests.conftest import eventually
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, Calls, locked, operation_id_of, run, spawn
from tests.lib.store.ledgers import rows


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("D46", part="execute")
def test_a_store_that_fails_after_the_handler_ran_loses_nothing_and_repeats_nothing(bench: Bench) -> None:
    holders: list[Any] = []

    def handler(ctx: Any) -> dict[str, str]:
        ctx.report(provider_operation_id="ch_1")
        holders.append(locked(bench))
        return {"status": "captured"}

    effect = bench.effect(handler, app=bench.impatient())
    with pytest.raises(LedgerUnavailableError) as lost:
        effect.execute(ARGUMENTS)
    error = lost.value
    assert (error.operation_id, error.attempt, error.observed, error.output, error.provider_operation_id) == (
        OPERATION_ID, 1, "returned", '{"status":"captured"}', "ch_1",
    )  # fmt: skip
    assert "was dispatched" in str(error)
    holders[0].kill()
    op = effect.execute(ARGUMENTS)
    assert (op.created, op.status, op.output, op.attempts, len(holders)) == (False, Status.CONFIRMED, {"status": "captured"}, 1, 1)


@pytest.mark.promise("X3", "D46", part="nothing dispatched")
def test_without_a_store_nothing_is_executed(bench: Bench) -> None:
    calls = Calls("done")
    effect = bench.effect(calls, app=bench.impatient())
    effect.execute(ARGUMENTS, operation_id="warm")
    with locked(bench), pytest.raises(LedgerUnavailableError) as refused:
        effect.execute(ARGUMENTS)
    assert (refused.value.exit_code, refused.value.attempt, refused.value.observed) == (75, None, None)
    assert "was dispatched" not in str(refused.value)
    assert calls.count == 1
    assert effect.execute(ARGUMENTS).status is Status.CONFIRMED


def test_execute_refuses_a_contract_that_this_app_cannot_run_and_stores_nothing(bench: Bench) -> None:
    apart = EffectContract(name="apart", operation_id=operation_id_of)
    with pytest.raises(ConfigurationError, match="no handler"):
        bench.app.execute(apart, ARGUMENTS)
    apart.handled_by(lambda: None)
    with pytest.raises(ContractNotFoundError, match="apart"):
        bench.app.execute(apart, ARGUMENTS)
    assert bench.submitted() == []


def test_a_thread_handler_runs_beside_a_process_handler_that_no_runner_could_import(tmp_path: Path) -> None:
    code = """
import sys
from settled import App
app = App(sys.argv[1])
app.create_database()
app.effect(name="elsewhere", operation_id=lambda a: "2")(lambda: None)
here = app.effect(name="here", operation_id=lambda a: "1", isolation="thread")(lambda: "done")
print(app.execute(here, {}).result())
app.close()
"""
    assert run(code, tmp_path / "settled.db") == "done"


def test_an_app_that_was_used_before_a_fork_executes_in_the_child_as_another_incarnation(tmp_path: Path) -> None:
    code = """
import os, sys
from settled import App
app = App(sys.argv[1])
app.create_database()
who = app.effect(name="who", operation_id=lambda a: str(a["n"]), isolation="thread")(lambda: os.getpid())
app.execute(who, {"n": 0})
child = os.fork()
op = app.execute(who, {"n": "parent" if child else "child"})
assert op.result() == os.getpid(), op
app.close()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert app.execute(who, {"n": "after"}).status == "confirmed"
print(len({record["worker"] for one in app.list() for record in app.get(one.operation_id).attempt_records}))
app.close()
"""
    assert int(run(code, tmp_path / "settled.db")) >= 2


@pytest.mark.promise("S115")
def test_a_caller_beats_while_its_handler_works_and_is_not_taken_over(bench: Bench, tmp_path: Path) -> None:
    extra = {"EFFECTS": str(tmp_path / "effects"), "BEAT_SECONDS": "0.05"}
    code = "import paying; paying.app.execute(paying.probed, {'invoice_id': '1', 'do': 'hang'})"
    child = spawn(code, database=bench.app.ledger.path, extra=extra)
    assert child.stdout is not None
    assert child.stdout.readline() == "hanging\n"
    worker = bench.worker()
    for _ in range(10):
        worker.leases()
        bench.clock.advance(31)
        counter = worker.examiner._seen.copy()
        eventually(lambda counter=counter: counter_moved(worker, counter))
    assert bench.app.get("invoice:1:capture").in_progress
    child.kill()
    child.communicate()
    worker.leases()
    op = bench.app.get("invoice:1:capture")
    assert (op.status, op.attempt_records[0]["fence"]) == (Status.OUTCOME_UNKNOWN, "process_gone")
    assert bench.types("invoice:1:capture") == ["submitted", "dispatched", "lease_lost"]
    assert (tmp_path / "effects").read_text() == "1\n"


def counter_moved(worker: Any, before: dict[int, Any]) -> bool:
    """Whether every incarnation that was looked at has shown a new sign of life since."""
    from settled.steps.recover import read_counter
    from settled.store import workers

    with worker.shell.ledger.read() as transaction:
        found = workers.find(transaction, set(before))
    return all(read_counter(found[number]) != looks.counter for number, looks in before.items())


@pytest.mark.promise("S116")
@pytest.mark.promise("D23", part="the library")
@pytest.mark.parametrize("ask", ["submit", "execute", "reconcile", "op probe"])
def test_a_dead_callers_row_needs_no_worker(bench: Bench, tmp_path: Path, ask: str) -> None:
    effects = tmp_path / "effects"
    extra = {"EFFECTS": str(effects)}
    code = "import sys, paying; paying.app.execute(paying.probed, {'invoice_id': sys.argv[1], 'do': 'exit'})"
    for invoice in "12":
        run(code, invoice, database=bench.app.ledger.path, extra=extra, expect=73)
    code = f"""
import paying, subprocess, sys
arguments = {{"invoice_id": "1", "do": "exit"}}
if "{ask}" == "op probe":
    command = [sys.executable, "-m", "settled_cli.main", "op", "probe", "--app", "paying:app", "invoice:1:capture"]
    subprocess.run(command, check=True, capture_output=True)
asks = {{
    "op probe": lambda: paying.app.get("invoice:1:capture"),
    "reconcile": lambda: paying.app.reconcile("invoice:1:capture"),
    "submit": lambda: paying.probed.submit(arguments),
    "execute": lambda: paying.probed.execute(arguments),
}}
op = asks["{ask}"]()
print(op.status, op.created, op.attempts)
paying.app.close()
"""
    expected = "outcome_unknown" if ask == "submit" else "confirmed"
    assert run(code, database=bench.app.ledger.path, extra=extra) == f"{expected} False 1"
    types = bench.types("invoice:1:capture")
    assert types == ["submitted", "dispatched", "lease_lost", *(["probe_committed"] if ask != "submit" else [])]
    assert bench.types("invoice:2:capture") == ["submitted", "dispatched"]
    assert effects.read_text().splitlines() == ["1", "2"]


@pytest.mark.promise("P46", part="a caller of execute; a worker is shown with the worker")
def test_a_crash_between_commit_and_record_is_one_effect(bench: Bench, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    extra = {"EFFECTS": str(effects)}
    code = "import paying; paying.app.execute(paying.probed, {'invoice_id': '1', 'do': 'exit'})"
    run(code, database=bench.app.ledger.path, extra=extra, expect=73)
    code = "import paying; op = paying.app.reconcile('invoice:1:capture'); print(op.status, op.attempts); paying.app.close()"
    assert run(code, database=bench.app.ledger.path, extra=extra) == "confirmed 1"
    events = bench.app.events("invoice:1:capture")
    assert [event.type for event in events] == ["submitted", "dispatched", "lease_lost", "probe_committed"]
    assert [event.status for event in events] == ["prepared", "dispatched", "outcome_unknown", "confirmed"]
    assert effects.read_text() == "1\n"


def test_a_moment_of_the_bench_moves_on_every_clock(bench: Bench) -> None:
    bench.clock.freeze()
    before = bench.clock.now()
    bench.clock.advance(1.5)
    assert bench.clock.now() == Moment(before.wall_us + 1_500_000, before.boot_us + 1_500_000, before.boot_id)


def test_many_threads_of_one_app_execute_at_once(bench: Bench) -> None:
    effect = bench.effect(lambda arguments: arguments["n"], operation_id=lambda a: f"op-{a['n']}")
    start, got = threading.Barrier(16), dict[int, Any]()

    def execute(number: int) -> None:
        start.wait()
        got[number] = effect.execute({"n": number}).result()

    threads = [threading.Thread(target=execute, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {number: number for number in range(16)}
    assert len({bench.app.get(f"op-{number}").attempt_records[0]["worker"] for number in range(16)}) == 1


def test_a_crowd_that_executes_new_known_other_and_limited_requests_runs_each_once(bench: Bench) -> None:
    app = bench.again(Limits(slots=6))
    ran: list[str] = []
    running, most = [0], [0]

    def limited(arguments: dict[str, Any]) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        ran.append(f"limited-{arguments['n']}")
        running[0] -= 1

    def handler(arguments: dict[str, Any]) -> None:
        ran.append(f"plain-{arguments['n']}")

    plain = bench.effect(handler, app=app, operation_id=lambda a: f"plain-{a['n']}")
    alone = bench.effect(limited, app=app, name="alone", operation_id=lambda a: f"limited-{a['n']}", concurrency=1)
    start = threading.Barrier(16)

    def execute(caller: int) -> int:
        start.wait()
        refused = 0
        for n in range(12):
            plain.execute({"n": n})  # all of them the same
            plain.execute({"n": 1000 * (caller + 1) + n})  # each its own
            alone.execute({"n": 100 * (caller + 1) + n})
            try:
                plain.execute({"n": n, "caller": caller}, operation_id=f"plain-{n}")
            except OperationConflictError:
                refused += 1
        return refused

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(execute, range(16))) == [12] * 16
    assert len(ran) == len(set(ran)), "a handler ran twice"
    assert {f"plain-{n}" for n in range(12)} | {f"plain-{1000 * (c + 1) + n}" for c in range(16) for n in range(12)} <= set(ran)
    assert most == [1]
    assert app.get("plain-0").status is Status.CONFIRMED and verify(app.ledger) == []
    events, commits = rows(app.ledger, "SELECT sum(events), count(*) FROM seal")[0]
    assert events > 2 * commits, "nothing was shared"


def test_an_end_bears_the_moment_at_which_it_is_recorded_not_that_at_which_it_was_asked_for(bench: Bench) -> None:
    app, (entered, may_return, holds, may_commit) = bench.app, (threading.Event() for _ in range(4))
    bench.clock.freeze()

    def handler() -> None:
        entered.set()
        assert may_return.wait(30)

    def hold(_: object) -> None:
        holds.set()
        assert may_commit.wait(30)

    effect = bench.effect(handler, operation_id=lambda a: "op-1")
    with ThreadPoolExecutor() as pool:
        op = pool.submit(effect.execute, {})
        assert entered.wait(30)
        pool.submit(app.ledger.together.write, hold)
        assert holds.wait(30)
        may_return.set()
        eventually(lambda: len(app.ledger.together._waiting) == 1)
        bench.clock.advance(7)
        may_commit.set()
        assert op.result(30).status is Status.CONFIRMED
    dispatched, returned = app.events("op-1")[-2:]
    assert (returned.at - dispatched.at).total_seconds() == 7


def test_callers_beyond_the_places_wait_for_one_and_a_refused_or_failed_call_gives_its_place_back(bench: Bench) -> None:
    app = bench.again(Limits(slots=2))

    def handler(arguments: dict[str, Any]) -> int:
        if arguments["n"] < 2:
            raise EffectRejected("no")
        return int(arguments["n"])

    effect = bench.effect(handler, app=app, operation_id=lambda a: f"op-{a['n']}")
    for number in range(2):  # as many as there are places
        assert effect.execute({"n": number}).status is Status.REJECTED
        with pytest.raises(OperationConflictError):
            effect.execute({"n": number, "another": True}, operation_id=f"op-{number}")
    got = dict[int, Any]()
    threads = [threading.Thread(target=lambda n=number: got.update({n: effect.execute({"n": n}).result()})) for number in range(2, 18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == {number: number for number in range(2, 18)}


def test_a_second_call_takes_no_dispatch_from_the_first_that_is_about_to_start_it(bench: Bench) -> None:
    effect = bench.effect(lambda: "done", operation_id=lambda a: "op-1")
    is_claimed, may_start, got = threading.Event(), threading.Event(), list[Any]()

    def wait_before_the_start(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code is InlineCalls.run.__code__:
            is_claimed.set()
            may_start.wait(30)

    def first() -> None:
        sys.settrace(wait_before_the_start)
        got.append(effect.execute({}))

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert is_claimed.wait(30)
        second = effect.execute({})
        assert (second.status, second.attempts) == (Status.DISPATCHED, 1)
    finally:
        may_start.set()
        thread.join()
    assert [(one.status, one.attempts) for one in got] == [(Status.CONFIRMED, 1)]
    assert [event.type for event in bench.app.events("op-1")] == ["submitted", "dispatched", "returned"]


@pytest.mark.promise("D32", part="an asynchronous handler, executed beside nobody's loop")
def test_an_asynchronous_handler_is_awaited_and_bounded(bench: Bench) -> None:
    async def handler(arguments: dict[str, Any]) -> str:
        await asyncio.sleep(arguments["seconds"])
        return "done"

    async def probe() -> ProbeResult:
        return ProbeResult.committed(output="seen")

    effect = bench.effect(handler, isolation="async", timeout=1.0, operation_id=lambda a: str(a["seconds"]), outcome_probe=probe)
    assert effect.execute({"seconds": 0}).result() == "done"
    op = effect.execute({"seconds": 600})
    assert (op.status, bench.types("600")[-1]) == (Status.OUTCOME_UNKNOWN, "timed_out")
    assert bench.app.reconcile("600").result() == "seen"
