"""What a refusal, an error, a cancellation or an exit of a handler leaves behind."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import (
    App,
    EffectFailedError,
    EffectRejected,
    NeedsReview,
    NotSent,
    Outcome,
    ProbeResult,
    Status,
)
from tests.conftest import eventually
from tests.lib.apps.bench import ARGUMENTS, OPERATION_ID, Bench, Calls, attempts, guaranteed, run


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("P31", "D05")
def test_a_definitive_rejection_is_final_by_default_and_replayed(bench: Bench) -> None:
    calls, asked = Calls(EffectRejected("card declined")), list[int]()
    effect = bench.effect(calls, retry=attempts(3), outcome_probe=lambda: asked.append(1) or ProbeResult.unknown())
    op = bench.app.execute(effect, ARGUMENTS)
    assert (op.status, op.outcome, op.error) == (Status.REJECTED, Outcome.FAILED, "EffectRejected: card declined")
    assert op.attempt_records[0]["closed_by"] == "rejected"
    with pytest.raises(EffectFailedError, match="card declined"):
        op.result()
    for again in (effect.submit(ARGUMENTS), effect.execute(ARGUMENTS)):
        assert (again.created, again.outcome) == (False, Outcome.FAILED)
    assert (calls.count, asked) == (1, [])
    for wrong in (1, None, "yes"):
        with pytest.raises(TypeError, match="retryable"):
            EffectRejected("x", retryable=wrong)  # type: ignore[arg-type]


@pytest.mark.promise("S02")
def test_what_was_provably_not_sent_is_dispatched_again_without_a_probe(bench: Bench) -> None:
    effects, asked = list[int](), list[int]()
    calls = Calls(NotSent("dns"), lambda: effects.append(1))
    effect = bench.effect(calls, outcome_probe=lambda: asked.append(1) or ProbeResult.unknown())
    op = bench.app.execute(effect, ARGUMENTS)
    assert (op.status, op.outcome, bench.types()[-1], effects) == (Status.PREPARED, None, "not_sent", [])
    assert op.attempt_records[0]["closed_by"] == "not_sent"
    bench.clock.advance(10)
    op = bench.app.execute(effect, ARGUMENTS)
    assert (op.created, op.status, op.attempts, effects, asked) == (False, Status.CONFIRMED, 2, [1], [])
    assert (op.attempt_records[0]["decision"], op.attempt_records[0]["basis"]) == ("retry", "not_sent")


@pytest.mark.promise("S02")
def test_not_sent_is_not_believed_after_sending_was_announced(bench: Bench) -> None:
    def handler(ctx: Any) -> None:
        ctx.sending()
        raise NotSent("too late to say so")

    op = bench.app.execute(bench.effect(handler, outcome_probe=lambda: ProbeResult.unknown()), ARGUMENTS)
    assert (op.status, bench.types()[-1]) == (Status.OUTCOME_UNKNOWN, "raised")


@pytest.mark.promise("S41", part="all but its escalation")
def test_needs_review_goes_to_a_person_at_once_even_under_a_guarantee(bench: Bench) -> None:
    calls = Calls(NeedsReview("two charges look alike"))
    effect = bench.effect(calls, outcome_probe=lambda: ProbeResult.unknown(), **guaranteed())
    op = bench.app.execute(effect, ARGUMENTS)
    assert (op.status, op.reason, op.outcome) == (Status.QUARANTINED, "needs_review", Outcome.UNKNOWN)
    assert op.error is not None
    assert "two charges look alike" in op.error
    assert bench.types() == ["submitted", "dispatched", "raised", "quarantined"]
    worker = bench.worker()
    worker.reconcile()
    bench.clock.advance(3600)
    worker.reconcile()
    assert (worker.turn(), calls.count) == (0, 1)


@pytest.mark.promise("P30", part="in a thread; a process is killed with its group before the fence")
@pytest.mark.parametrize("error", [TimeoutError("x"), ConnectionResetError("x"), ValueError("x"), GeneratorExit()], ids=repr)
def test_any_other_exception_leaves_the_outcome_unknown_and_never_failed(bench: Bench, error: BaseException) -> None:
    calls = Calls(error)
    op = bench.app.execute(bench.effect(calls, outcome_probe=lambda: ProbeResult.unknown(), retry=attempts(3)), ARGUMENTS)
    assert (op.status, op.outcome, calls.count) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN, 1)
    assert bench.types() == ["submitted", "dispatched", "raised"]
    (attempt,) = op.attempt_records
    assert (attempt["error_class"], attempt["interruption"], attempt["fence"], attempt["closed_by"], attempt["decision"]) == (
        type(error).__name__, "exception", "raised", "open", None,
    )  # fmt: skip


@pytest.mark.promise("P30", "S40", part="in a process: exit, segmentation fault, exception")
@pytest.mark.parametrize(("do", "end"), [("exit", "crashed"), ("segfault", "crashed"), ("raise", "raised")])
def test_in_a_process_a_crash_is_an_unknown_outcome_with_a_fence(bench: Bench, tmp_path: Path, do: str, end: str) -> None:
    code = """
import json, sys, paying
op = paying.app.execute(paying.in_process, {"invoice_id": "1", "do": sys.argv[1]})
print(json.dumps([op.status, op.attempts, [event.type for event in paying.app.events(op.operation_id)], op.attempt_records[0]["fence"]]))
paying.app.close()
"""
    effects = {"EFFECTS": str(tmp_path / "effects")}
    said = run(code, do, database=bench.app.ledger.path, extra=effects)
    assert said == f'["outcome_unknown", 1, ["submitted", "dispatched", "{end}"], "process_killed"]'.replace(
        '"process_killed"', '"raised"' if do == "raise" else '"process_killed"'
    )


@pytest.mark.promise("P30")
def test_after_any_other_error_the_runner_and_its_group_are_dead_before_the_fence(bench: Bench, tmp_path: Path) -> None:
    code = """
import json, pathlib, paying
ends = [("leave a child and raise", error) for error in ("TimeoutError", "ConnectionResetError", "ValueError")]
for number, (do, error) in enumerate([*ends, ("exit", ""), ("segfault", "")]):
    op = paying.app.execute(paying.retried, {"invoice_id": str(number), "do": do, "error": error})
    child = paying.EFFECTS.with_suffix(".child").read_text()
    record = op.attempt_records[0]
    alive = pathlib.Path(f"/proc/{child}/environ").exists() and pathlib.Path(f"/proc/{child}/environ").read_bytes() != b""
    print(op.status, op.outcome, op.attempts, record["end"], record["fence"], record["interruption"], alive)
paying.app.close()
"""
    said = run(code, database=bench.app.ledger.path, extra={"EFFECTS": str(tmp_path / "effects")}).splitlines()
    ends = ["raised raised exception"] * 3 + ["crashed process_killed crash"] * 2
    assert said == [f"outcome_unknown UNKNOWN 1 {end} False" for end in ends]
    assert (tmp_path / "effects").read_text().split() == ["0", "1", "2", "3"]  # one call each; a segfault comes before its effect


@pytest.mark.promise("D04")
def test_an_error_is_stored_as_its_class_and_one_bounded_line(bench: Bench) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    def stored(number: int, error: BaseException, **terms: Any) -> str:
        effect = bench.effect(Calls(error), name=f"effect {number}", outcome_probe=lambda: ProbeResult.unknown(), **terms)
        return str(bench.app.execute(effect, ARGUMENTS, operation_id=str(number)).error)

    long = stored(1, ValueError("line one\nline two \x1b[31m" + "x" * 5_000_000))
    assert long.startswith("ValueError: line one line two ")
    assert len(long) <= len("ValueError: ") + 500
    assert "\n" not in long
    assert "\x1b" not in long
    assert stored(2, Rude()) == "Rude: error message unavailable"
    assert stored(3, ValueError("a secret"), store_error_text=False) == "ValueError"
    assert "[ValueError]" not in stored(4, KeyError())


@pytest.mark.promise("D04", part="no local variable of a frame is ever stored")
def test_a_secret_in_a_local_variable_appears_nowhere(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    def handler() -> None:
        headers = {"Authorization": "Bearer SECRET-4711"}
        raise ConnectionResetError(f"the connection with {len(headers)} header was reset")

    op = bench.app.execute(bench.effect(handler, outcome_probe=lambda: ProbeResult.unknown()), ARGUMENTS)
    bench.app.close()
    stored = b"".join(path.read_bytes() for path in bench.folder.rglob("*") if path.is_file())
    said = capfd.readouterr()
    assert "SECRET-4711" not in repr(op) + said.out + said.err
    assert b"SECRET-4711" not in stored
    assert b"1 header was reset" in stored


@pytest.mark.promise("P30", part="a handler that logs and raises what cannot be serialised")
def test_what_a_handler_logs_never_changes_its_outcome(bench: Bench) -> None:
    class Rude:
        def __repr__(self) -> str:
            raise ValueError("no")

    circle: dict[str, Any] = {}
    circle["self"] = circle

    def handler(ctx: Any) -> str:
        ctx.log.info("odd", a=object(), b=b"x", c={1}, d=circle, e=Rude(), f="x" * 5_000_000)
        return "done"

    assert bench.app.execute(bench.effect(handler), ARGUMENTS).status is Status.CONFIRMED


@pytest.mark.promise("D51")
@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (asyncio.CancelledError(), asyncio.CancelledError),
        (BaseExceptionGroup("all", [ValueError(), BaseExceptionGroup("in", [asyncio.CancelledError()])]), asyncio.CancelledError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(3), SystemExit),
    ],
    ids=["cancelled", "in a group", "interrupt", "exit"],
)
@pytest.mark.parametrize("where", ["handler", "probe"])
def test_a_cancellation_or_exit_is_recorded_first_and_then_passed_on(
    bench: Bench, raised: BaseException, expected: type[BaseException], where: str
) -> None:
    effect = bench.effect(Calls(raised if where == "handler" else OSError()), outcome_probe=Calls(raised))
    if where == "probe":
        bench.app.execute(effect, ARGUMENTS)
    with pytest.raises(expected) as passed_on:
        effect.execute(ARGUMENTS)
    if expected is SystemExit:
        assert passed_on.value.code == 3
    op = bench.app.get(OPERATION_ID)
    assert (op.status, op.outcome, op.in_progress, op.reconciling) == (Status.OUTCOME_UNKNOWN, Outcome.UNKNOWN, False, False)
    assert bench.types()[:3] == ["submitted", "dispatched", "raised"]
    assert bench.types()[3:] == (["probe_unknown"] if where == "probe" else [])


@pytest.mark.promise("D51")
def test_an_interrupt_of_the_waiting_caller_is_recorded_first_and_then_passed_on(bench: Bench) -> None:
    gate, inside = bench.gate(), threading.Event()

    def handler() -> None:
        inside.set()
        gate.wait()

    effect = bench.effect(handler, outcome_probe=lambda: ProbeResult.unknown())

    def interrupt() -> None:
        inside.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        bench.app.execute(effect, ARGUMENTS)
    op = bench.app.get(OPERATION_ID)
    assert (op.status, bench.types()[-1], op.attempt_records[0]["fence"]) == (Status.OUTCOME_UNKNOWN, "stopped", "may_still_run")


@pytest.mark.promise("D51", part="two interrupts, of which the second hits while the first is handled")
def test_a_second_interrupt_loses_no_outcome(bench: Bench) -> None:
    from settled.execution.calls import Calls as Waiting
    from settled.execution.pool import Execution

    gate, inside = bench.gate(), threading.Event()

    def handler() -> str:
        inside.set()
        gate.wait()
        return "done"

    class Interrupted(Execution):
        """Stands for a thread that is hit twice: while it waits, and while it stops the handler."""

        def stop(self, key: Any) -> bool:
            raise KeyboardInterrupt

    def stop_wanted() -> bool:
        inside.wait()
        raise KeyboardInterrupt

    effect = bench.effect(handler)
    effect.submit(ARGUMENTS)
    worker = bench.worker()
    late: list[Any] = []
    calls = Waiting(late.append)
    execution = Interrupted(resolve=bench.app.contract, arrived=calls.arrived, clock=bench.clock.now)
    (job,) = worker.pump.step(bench.clock.now(), []).jobs
    with pytest.raises(KeyboardInterrupt):
        calls.run(execution, job, stop_wanted)
    gate.set()
    eventually(lambda: late)
    worker.arrived += late
    worker.step()
    assert bench.app.get(OPERATION_ID).result() == "done"


@pytest.mark.promise("D51", part="a worker's handler")
def test_an_exit_in_a_workers_handler_leaves_the_worker_alive(bench: Bench) -> None:
    effect = bench.effect(Calls(SystemExit(1), "done"), operation_id=lambda a: a["id"])
    worker = bench.worker()
    effect.submit({"id": "one"})
    worker.turn()
    effect.submit({"id": "two"})
    worker.turn()
    assert bench.app.get("one").outcome is Outcome.UNKNOWN
    assert bench.app.get("two").status is Status.CONFIRMED


@pytest.mark.promise("D04", part="configured redactions, before the cut")
def test_what_the_settings_mask_is_masked_before_an_error_text_is_cut(bench: Bench, tmp_path: Path) -> None:
    settings = tmp_path / "settled.toml"
    settings.write_text('redactions = ["SECRET-[0-9]+"]\n')
    code = """
import sys, paying
text = "x" * 492 + "SECRET-4711 and SECRET-12"
op = paying.app.execute(paying.probed if sys.argv[1] == "thread" else paying.in_process, {"invoice_id": "1", "do": "raise", "text": text})
print(op.error)
paying.app.close()
"""
    for isolation in ("thread", "process"):
        path = tmp_path / f"{isolation}.db"
        App(path).create_database()
        said = run(code, isolation, database=path, extra={"SETTLED_CONFIG": str(settings), "EFFECTS": str(tmp_path / "effects")})
        assert said.startswith("ConnectionResetError: xxx")
        assert "SECRET" not in said
        assert "***" in said
