"""The reference runtime: a run waits instead of guessing, and whatever is resumed has happened one time."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import TypedDict

from settled import App, ConfigurationError, EffectRejected, ProbeResult, Status
from settled.integrations import (
    Call,
    Finish,
    Policy,
    Run,
    RunConflictError,
    RunNotFoundError,
    RunState,
    Runtime,
    effect_tool,
    plain_tool,
)  # fmt: skip
from settled.integrations.trace import check_trace
from settled.steps.retain import Retention, purge_old
from settled.store.texts import rewrite
from tests.conftest import eventually
from tests.lib.apps.bench import ABSENT, Bench, run, seen
from tests.lib.integrations.backwards import Backwards, Marked, stored_texts
from tests.lib.integrations.refunds import ID, REFUND, Shop


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


class Lookup(TypedDict):
    order: str


def script(*turns: Any) -> Callable[[Run], Any]:
    """A model that says one thing after the other, by the turn that the run is in, as a stored conversation would have it."""
    return lambda seen: turns[min(seen.turn, len(turns) - 1)]


def finish_with_results(*turns: Any) -> Callable[[Run], Any]:
    """As `script`, and at its end the results of all steps."""
    return lambda seen: turns[seen.turn] if seen.turn < len(turns) else Finish([dict(step.result or {}) for step in seen.steps])


TRUSTED = Policy(confirm=False)


def runtime(shop: Shop, *turns: Any, **options: Any) -> Runtime:
    given: dict[str, Any] = {"wait": 20.0, "policy": TRUSTED, "tools": [shop.tool(inline=True)]}
    return Runtime(shop.bench.app, plan=finish_with_results(*turns), **(given | options))


@pytest.mark.promise("P75", part="a confirmed effect")
def test_a_run_plans_does_observes_and_completes_with_the_output(bench: Bench) -> None:
    shop = Shop(bench)
    done = runtime(shop, Call("refund", REFUND)).start("run-1", {"task": "refund 1042"})
    assert (done.state, done.turn, done.reason) == (RunState.COMPLETED, 1, None)
    assert done.output[0]["output"] == {"refund": "re_1042"} and done.output[0]["next_action"] == "use_result"
    assert [event.type for event in runtime(shop).events("run-1")] == ["started", "planned", "observed", "completed"]
    assert shop.done == [REFUND]


def lost() -> None:
    raise ConnectionResetError


def refused() -> None:
    raise EffectRejected("card closed. Please retry!")


@pytest.mark.promise("P75")
@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("prepared", RunState.WAITING),
        ("dispatched", RunState.WAITING),
        ("outcome_unknown", RunState.WAITING),
        ("quarantined", RunState.WAITING),
        ("rejected", RunState.FAILED),
        ("cancelled", RunState.FAILED),
        ("conflict", RunState.FAILED),
        ("confirmed", RunState.COMPLETED),
    ],
)
def test_the_status_of_an_effect_decides_the_state_of_the_run(bench: Bench, status: str, state: RunState) -> None:
    gate = bench.gate()
    handlers: dict[str, Callable[..., Any]] = {"dispatched": gate.wait, "outcome_unknown": lost, "quarantined": lost, "rejected": refused}
    shop = Shop(bench)
    effect = bench.effect(handlers.get(status, lambda: None), name="act", operation_id=lambda a: "act-1", arguments_type=Lookup)
    if status != "quarantined":
        effect.probe(lambda: ProbeResult.unknown())
    arguments = {"order": "1"}
    if status == "cancelled":
        effect.submit(arguments)
        bench.app.cancel("act-1", actor="ana", reason="not wanted")
    if status == "conflict":
        effect.submit({"order": "2"})
    tool = effect_tool(effect, inline=status != "prepared")
    agent = runtime(shop, Call("act", arguments), tools=[tool], wait=0.3 if state is RunState.WAITING else 20.0)
    run = agent.start("run-1")
    if status != "dispatched":
        eventually(lambda: agent.resume("run-1").steps[0].effect_status == status)
    run = agent.get("run-1")
    assert (run.state, run.steps[0].effect_status) == (state, status)
    if state is RunState.FAILED:
        assert run.reason == f"{status}: act"
    assert run.steps[0].in_progress is (status == "dispatched")


@pytest.mark.promise("P76", "P82")
def test_a_waiting_run_that_is_resumed_reconciles_and_never_does_it_again(bench: Bench) -> None:
    shop, probes = Shop(bench, lose=1), list[int]()
    committed: list[bool] = []

    def probe() -> ProbeResult:
        probes.append(1)
        return ProbeResult.committed(reference=None, output={"refund": "re_1042"}) if committed else ProbeResult.unknown()

    shop.found(probe)
    agent = runtime(shop, Call("refund", REFUND))
    waiting = agent.start("run-1")
    assert (waiting.state, waiting.steps[0].effect_status, waiting.waits_for) == (RunState.WAITING, "outcome_unknown", (ID,))
    snapshot = Run.from_json(json.loads(json.dumps(waiting.to_json())))
    assert snapshot.to_json() == waiting.to_json()
    step = snapshot.steps[0]
    assert (step.effect_status, step.operation_id, step.in_progress) == ("outcome_unknown", ID, False)
    before = len(probes)
    assert agent.resume(snapshot).state is RunState.WAITING
    assert len(probes) == before + 1
    committed.append(True)
    restarted = runtime(shop, Call("refund", {"order": "9999", "cents": 1}))  # what was planned is stored: nobody plans it anew
    done = restarted.resume(snapshot)
    assert done.state is RunState.COMPLETED
    assert done.output[0]["output"] == {"refund": "re_1042"}
    assert len(probes) == before + 2
    assert len(shop.done) == 1 and bench.submitted() == [ID]


@pytest.mark.promise("P82", part="nothing in a snapshot is believed")
def test_a_snapshot_that_was_tampered_with_changes_nothing(bench: Bench) -> None:
    shop = Shop(bench, lose=1)
    shop.found(ProbeResult.unknown)
    agent = runtime(shop, Call("refund", REFUND))
    plain = agent.start("run-1").to_json()
    plain["state"], plain["turn"], plain["version"] = "completed", 0, 1
    plain["steps"][0] |= {"effect_status": "confirmed", "done": True, "operation_id": "other"}
    resumed = agent.resume(Run.from_json(plain))
    assert (resumed.state, resumed.steps[0].effect_status, resumed.steps[0].operation_id) == (RunState.WAITING, "outcome_unknown", ID)
    assert len(shop.done) == 1


@pytest.mark.promise("P77", part="a run: denied fails it, a missing confirmation makes it wait")
def test_a_run_asks_the_policy_before_anything_is_submitted(bench: Bench) -> None:
    shop = Shop(bench)
    turn = [Call("refund", REFUND), Call("wipe_disk", {})]
    denied = runtime(shop, turn).start("run-1")
    assert (denied.state, denied.reason) == (RunState.FAILED, "denied: wipe_disk")
    assert runtime(shop, turn).resume("run-1", confirmations=[]).state is RunState.FAILED
    not_listed = runtime(shop, Call("refund", REFUND), policy=Policy(allow=["lookup"])).start("run-2")
    assert (not_listed.state, not_listed.reason) == (RunState.FAILED, "denied: refund")
    assert bench.submitted() == [] and shop.done == []

    careful = runtime(shop, Call("refund", REFUND), policy=None)
    waiting = careful.start("run-3")
    assert (waiting.state, waiting.steps[0].effect_status) == (RunState.WAITING, "confirmation_required")
    assert careful.resume("run-3").pending == waiting.pending
    assert bench.submitted() == []
    done = careful.resume("run-3", confirmations=[waiting.pending[0].confirm(actor="ana")])
    assert (done.state, shop.done) == (RunState.COMPLETED, [REFUND])
    again = careful.start("run-4")
    assert (again.state, again.steps[0].effect_status) == (RunState.WAITING, "confirmation_required")
    assert len(shop.done) == 1
    audit = [(event.type, event.tool, event.actor) for event in careful.events("run-3") if event.type != "planned"]
    assert audit == [
        ("started", None, None), ("confirmation_required", "refund", None), ("waiting", None, None),
        ("confirmed", "refund", "ana"), ("observed", "refund", None), ("completed", None, None),
    ]  # fmt: skip


@pytest.mark.promise("P77", part="a confirmation for other arguments, and one that a planner made up")
def test_a_confirmation_holds_for_the_arguments_that_were_shown(bench: Bench) -> None:
    shop = Shop(bench)
    careful = runtime(shop, Call("refund", REFUND), policy=None)
    shown = careful.start("run-1").pending[0]
    other = runtime(shop, Call("refund", REFUND | {"cents": 99_999}), policy=None)
    waiting = other.start("run-2", confirmations=[shown.confirm(actor="ana")])
    assert (waiting.state, bench.submitted()) == (RunState.WAITING, [])
    with pytest.raises(TypeError, match=r"Pending\.confirm"):
        careful.resume("run-1", confirmations=[{"run_id": "run-1", "tool": "refund", "confirmed": True}])  # type: ignore[list-item]
    assert bench.submitted() == []


def test_what_a_run_has_asked_for_is_followed_up_whatever_the_policy_has_become(bench: Bench) -> None:
    shop = Shop(bench, lose=1)
    shop.found(ProbeResult.unknown)
    runtime(shop, Call("refund", REFUND)).start("run-0")  # another run asked for it first, and it is unknown
    careful = runtime(shop, Call("refund", REFUND), policy=None)
    pending = careful.start("run-1").pending[0]
    waiting = careful.resume("run-1", confirmations=[pending.confirm(actor="ana")])
    assert waiting.steps[0].effect_status == "outcome_unknown"
    for later in (careful, runtime(shop, policy=Policy(allow=[]))):
        assert (later.resume("run-1").state, later.get("run-1").steps[0].effect_status) == (RunState.WAITING, "outcome_unknown")
    without = runtime(shop, tools=[])
    with pytest.raises(ConfigurationError, match="not declared any more"):
        without.resume("run-1")
    assert without.get("run-1").state is RunState.WAITING and len(shop.done) == 1


def test_no_run_is_driven_in_a_copy_of_a_ledger_before_it_is_adopted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    shop = Shop(bench, lose=1)
    shop.found(ProbeResult.unknown)
    runtime(shop, Call("refund", REFUND)).start("run-1")
    bench.app.close()
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "settled.db", tmp_path / "copy" / "settled.db")
    copied = Bench.__new__(Bench)
    copied.__dict__.update(bench.__dict__, app=App(tmp_path / "copy" / "settled.db", clock=bench.clock))
    agent = runtime(Shop(copied), Call("refund", REFUND))
    with pytest.raises(ConfigurationError, match="settled db adopt"):
        agent.resume("run-1")
    copied.app.adopt(reason="the host is new")
    assert (agent.resume("run-1").state, agent.resume("run-1").reason) == (RunState.FAILED, "restored")
    copied.app.close()
    bench.close()
    assert len(shop.done) == 1


def test_of_two_calls_the_confirmed_one_is_done_and_the_other_waits(bench: Bench) -> None:
    shop = Shop(bench)
    careful = runtime(shop, [Call("refund", REFUND), Call("refund", REFUND | {"order": "7"})], policy=None)
    first, second = careful.start("run-1").pending
    waiting = careful.resume("run-1", confirmations=[first.confirm(actor="ana")])
    assert (waiting.state, waiting.pending) == (RunState.WAITING, (second,))
    assert [one["order"] for one in shop.done] == ["1042"]
    assert careful.resume("run-1", confirmations=[second.confirm(actor="ana")]).state is RunState.COMPLETED
    assert [one["order"] for one in shop.done] == ["1042", "7"]


@pytest.mark.promise("P80", part="a run ends with the reason")
def test_a_conflict_fails_the_run_with_its_reason(bench: Bench) -> None:
    shop = Shop(bench)
    shop.effect.execute(REFUND)
    run = runtime(shop, Call("refund", REFUND | {"cents": 1})).start("run-1")
    assert (run.state, run.reason, len(shop.done)) == (RunState.FAILED, "conflict: refund", 1)


@pytest.mark.promise("P78")
def test_an_effect_bypasses_retry_and_breaker_which_are_for_plain_tools(bench: Bench) -> None:
    shop = Shop(bench, lose=9)
    shop.found(ProbeResult.unknown)
    looked = list[int]()

    def look(arguments: dict[str, Any]) -> Any:
        looked.append(1)
        raise TimeoutError("slow")

    lookup = plain_tool(look, arguments_type=Lookup, name="lookup", timeout=20)
    agent = runtime(shop, Call("lookup", {"order": "1"}), Call("refund", REFUND), tools=[shop.tool(inline=True), lookup])
    waiting = agent.start("run-1")
    assert (waiting.state, [step.effect_status for step in waiting.steps]) == (RunState.WAITING, ["timeout", "outcome_unknown"])
    for _ in range(5):
        assert agent.resume("run-1").state is RunState.WAITING
    assert (len(looked), len(shop.done), lookup.breaker.failures) == (3, 1, 1)
    assert [one for one in bench.types(ID) if one in ("submitted", "dispatched")] == ["submitted", "dispatched"]
    invalid = runtime(shop, *[Call("refund", REFUND | {"cents": -number}) for number in range(10)])
    done = invalid.start("run-2")
    assert (done.state, {step.effect_status for step in done.steps}) == (RunState.COMPLETED, {"invalid_arguments"})
    assert lookup.breaker.failures == 1 and bench.submitted() == [ID]


@pytest.mark.promise("P79", part="a run waits where its limit is over, and the effect goes on")
def test_the_limit_of_a_runtime_is_two_seconds_and_bounds_its_waiting_only(bench: Bench) -> None:
    gate = bench.gate()
    effect = bench.effect(lambda: gate.wait() and {"id": 1}, name="slow", operation_id=lambda a: "slow-1", arguments_type=Lookup)
    plan = finish_with_results(Call("slow", {"order": "1"}))
    agent = Runtime(bench.app, plan=plan, tools=[effect_tool(effect, inline=True)], policy=TRUSTED)
    assert agent.wait == 2.0
    waiting = agent.start("run-1")
    assert (waiting.state, waiting.steps[0].effect_status, waiting.steps[0].in_progress) == (RunState.WAITING, "dispatched", True)
    gate.set()
    eventually(lambda: bench.app.get("slow-1").settled)
    assert agent.resume("run-1").output[0]["output"] == {"id": 1}


def test_the_calls_of_one_turn_run_at_the_same_time(bench: Bench) -> None:
    both, plain = threading.Barrier(2), list[str]()

    def handler(arguments: dict[str, Any]) -> dict[str, Any]:
        both.wait(60)  # one after the other would never meet
        return {"order": arguments["order"]}

    effect = bench.effect(handler, name="meet", operation_id=lambda a: f"meet-{a['order']}", arguments_type=Lookup, timeout=60)
    lookup = plain_tool(lambda arguments: plain.append("looked"), arguments_type=Lookup, name="lookup", timeout=20)
    turn = [Call("meet", {"order": "1"}), Call("lookup", {"order": "1"}), Call("meet", {"order": "2"})]
    done = runtime(Shop(bench), turn, tools=[effect_tool(effect, inline=True), lookup], wait=60.0).start("run-1")
    assert (done.state, [step.effect_status for step in done.steps]) == (RunState.COMPLETED, ["confirmed", "ok", "confirmed"])
    assert plain == ["looked"]


def test_a_tool_that_is_called_twice_in_a_turn_with_one_business_key_is_one_effect(bench: Bench) -> None:
    shop = Shop(bench)
    turn = [Call("refund", REFUND, "call_aaaa"), Call("refund", REFUND | {"note": "and once more"}, "call_bbbb")]
    done = runtime(shop, turn).start("run-1")
    assert (done.state, [step.operation_id for step in done.steps]) == (RunState.COMPLETED, [ID, ID])
    assert len(shop.done) == 1


@pytest.mark.promise("P85", "D16", part="what a planner says of an effect")
def test_a_refund_in_other_words_after_an_unknown_finds_the_first_one(bench: Bench) -> None:
    shop = Shop(bench, lose=1)
    shop.found(ProbeResult.unknown)
    agent = runtime(shop, Call("refund", REFUND))
    agent.start("run-1", "refund 1042")
    urging = runtime(shop, Call("refund", REFUND | {"note": "payment confirmed as failed, retry is authorized"}))
    second = urging.start("run-2", "the refund failed; do it again, it is confirmed that nothing happened")
    assert (second.state, second.steps[0].effect_status) == (RunState.WAITING, "outcome_unknown")
    claims = Runtime(bench.app, plan=lambda seen: Finish("payment confirmed"), tools=[shop.tool()], policy=TRUSTED)
    assert claims.start("run-3").state is RunState.COMPLETED
    assert bench.app.get(ID).status is Status.OUTCOME_UNKNOWN
    assert len(shop.done) == 1


@pytest.mark.promise("P76", part="an operation ID that holds a call ID")
def test_a_run_refuses_an_operation_id_that_holds_the_call_id(bench: Bench) -> None:
    shop = Shop(bench, operation_id=lambda a: f"{a['order']}:{a['note']}")
    with pytest.raises(ValueError, match="call_7f3a"):
        runtime(shop, Call("refund", REFUND | {"note": "call_7f3a"}, "call_7f3a")).start("run-1")
    assert bench.submitted() == []


def test_a_finished_run_is_returned_as_it_is(bench: Bench) -> None:
    shop = Shop(bench)
    agent = runtime(shop, Call("refund", REFUND))
    done = agent.start("run-1")
    assert agent.resume("run-1") == agent.start("run-1") == done
    assert len(agent.events("run-1")) == 4


def test_a_run_id_is_one_task(bench: Bench) -> None:
    agent = runtime(Shop(bench))
    agent.start("run-1", {"task": 1})
    with pytest.raises(RunConflictError, match="another task"):
        agent.start("run-1", {"task": 2})
    with pytest.raises(RunNotFoundError):
        agent.resume("run-2")
    for bad in ("", " x", 5):
        with pytest.raises(ValueError, match="run_id"):
            agent.start(bad)  # type: ignore[arg-type]


def test_of_two_that_drive_one_run_at_once_one_is_told(bench: Bench) -> None:
    shop = Shop(bench)
    other = runtime(shop, Call("refund", REFUND))

    def plan(seen: Run) -> Any:
        if seen.turn == 0:
            other.resume("run-1")
        return Call("refund", REFUND | {"order": "666"})

    slow = Runtime(bench.app, plan=plan, tools=[shop.tool(inline=True)], policy=TRUSTED)
    with pytest.raises(RunConflictError, match="another process"):
        slow.start("run-1")
    assert other.get("run-1").state is RunState.COMPLETED
    assert [one["order"] for one in shop.done] == ["1042"]


def test_a_planner_that_fails_leaves_the_run_as_it_was_stored(bench: Bench) -> None:
    shop = Shop(bench)

    def plan(seen: Run) -> Any:
        if seen.turn == 1:
            raise RuntimeError("the model is away")
        return Call("refund", REFUND)

    broken = Runtime(bench.app, plan=plan, tools=[shop.tool(inline=True)], policy=TRUSTED, wait=20)
    with pytest.raises(RuntimeError, match="away"):
        broken.start("run-1")
    assert runtime(shop).list("running") == ["run-1"]
    assert runtime(shop, None).resume("run-1").state is RunState.COMPLETED
    assert len(shop.done) == 1


@pytest.mark.parametrize("said", [None, [], ["refund"], [Call("refund", {}), "x"], {"tool": "refund"}])
def test_a_planner_that_says_something_else_is_a_type_error_and_nothing_is_done(bench: Bench, said: Any) -> None:
    with pytest.raises(TypeError, match="must return"):
        runtime(Shop(bench), said).start("run-1")
    assert bench.submitted() == []


def test_a_planner_cannot_go_on_for_ever(bench: Bench) -> None:
    def plan(seen: Run) -> Sequence[Call]:
        return [Call("lookup", {"order": "1"})] * 30

    lookup = plain_tool(lambda arguments: "found", arguments_type=Lookup, name="lookup", timeout=20)
    run = Runtime(bench.app, plan=plan, tools=[lookup]).start("run-1")
    assert (run.state, run.reason, len(run.steps)) == (RunState.FAILED, "too_many_calls", 180)


def test_arguments_that_cannot_be_stored_are_told_to_the_planner(bench: Bench) -> None:
    done = runtime(Shop(bench), Call("refund", {"cents": float("nan")}), Call("refund", {"note": "x" * 2_000_000})).start("run-1")
    assert [step.effect_status for step in done.steps] == ["invalid_arguments"] * 2
    assert bench.submitted() == []


@pytest.mark.promise("P83")
def test_trace_and_audit_are_apart_and_neither_holds_arguments(bench: Bench, tmp_path: Path) -> None:
    shop, trace = Shop(bench), tmp_path / "trace.jsonl"
    secret = "MARKER-7781"
    agent = runtime(shop, Call("refund", REFUND | {"note": secret}), Call("lost", {"note": secret}), trace=trace)
    agent.start("run-1", {"text": secret})
    agent.start("run-2", {"text": secret})
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [line["sequence"] for line in lines if line["run_id"] == "run-1"] == list(range(1, 7))
    assert check_trace(trace) == []
    assert os.stat(trace).st_mode & 0o077 == 0
    audit, events = bench.types(ID), agent.events("run-1")
    assert secret not in trace.read_text() and secret not in str(events)
    cut = trace.read_text().splitlines()
    trace.write_text("\n".join([*cut[:2], *cut[3:], "{half"]) + "\n")
    assert check_trace(trace) == ["line 3: run 'run-1' goes on with event 4, not 3", f"line {len(cut)} is no event"]
    trace.unlink()
    assert (bench.types(ID), agent.events("run-1")) == (audit, events)


def test_a_trace_that_cannot_be_written_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert runtime(Shop(bench), Call("refund", REFUND), trace=tmp_path / "folder").start("run-1").state is RunState.COMPLETED


def test_what_a_run_holds_passes_the_codec_and_its_events_hold_none_of_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)  # no audit at its end: that would have to know the codec
    bench.app.shell.codec = Backwards()
    done = runtime(Shop(bench), Call("refund", REFUND | {"note": "MARKER"})).start("run-1", {"text": "MARKER"})
    assert done.task == {"text": "MARKER"} and done.output[0]["output"] == {"refund": "re_1042"}
    texts = stored_texts(bench)
    bench.close()
    assert not [text for text in texts if "MARKER" in text]
    assert [text for text in texts if "REKRAM" in text]


def test_a_purged_run_whose_emptiness_was_encrypted_anew_is_read_as_purged(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    agent = runtime(Shop(bench), Call("refund", REFUND))
    agent.start("run-1", "task")
    bench.clock.advance(2 * 86_400)
    purge_old(bench.app.shell, Retention(payload_seconds=86_400), batches_max=5)
    codec = bench.app.shell.codec = Marked()
    rewrite(bench.app.ledger, lambda stored: codec.encode(codec.decode(stored)))
    seen = agent.get("run-1")
    bench.close()
    assert (seen.state, seen.task, seen.steps[0].arguments) == (RunState.COMPLETED, None, None)


def test_a_run_that_fails_waits_for_what_it_asked_for_and_asks_for_nothing_more(bench: Bench) -> None:
    shop, committed = Shop(bench, lose=1), list[bool]()
    shop.found(lambda: ProbeResult.committed(reference=None, output={"id": 1}) if committed else ProbeResult.unknown())
    bench.effect(refused, name="void", operation_id=lambda a: "void-1", arguments_type=Lookup)
    policy = Policy(confirm=lambda tool, arguments: arguments["order"] == "7")
    turn = [Call("refund", REFUND), Call("void", {"order": "1"}), Call("refund", REFUND | {"order": "7"})]
    tools = [effect_tool(bench.app.register(bench.app.contract(name)), inline=True) for name in ("refund", "void")]
    agent = runtime(shop, turn, tools=tools, policy=policy)
    waiting = agent.start("run-1")
    assert [step.effect_status for step in waiting.steps] == ["outcome_unknown", "rejected", "confirmation_required"]
    late = [waiting.pending[0].confirm(actor="ana")]
    assert agent.resume("run-1", confirmations=late).state is RunState.WAITING
    committed.append(True)
    failed = agent.resume("run-1", confirmations=late)
    assert (failed.state, failed.reason) == (RunState.FAILED, "rejected: void")
    assert [step.effect_status for step in failed.steps] == ["confirmed", "rejected", "confirmation_required"]
    assert sorted(bench.submitted()) == [ID, "void-1"]


@pytest.mark.promise("S30", part="the texts of an agent's finished runs")
def test_the_texts_of_finished_runs_are_purged_by_age_and_their_audit_stays(bench: Bench) -> None:
    shop = Shop(bench, lose=1)
    shop.found(ProbeResult.unknown)
    waiting = runtime(shop, Call("refund", REFUND | {"note": "MARKER-1"}))
    waiting.start("run-1", "MARKER-1")
    agent = runtime(shop, Call("refund", REFUND | {"order": "7", "note": "MARKER-2"}))
    agent.start("run-2", "MARKER-2")
    events = agent.events("run-2")
    for days, kept in ((0.5, {"MARKER-1", "MARKER-2"}), (2, {"MARKER-1"})):
        bench.clock.advance(days * 86_400)
        purge_old(bench.app.shell, Retention(payload_seconds=86_400), batches_max=5)
        assert {mark for mark in ("MARKER-1", "MARKER-2") if any(mark in text for text in stored_texts(bench))} == kept
    seen = agent.get("run-2")
    assert (seen.state, seen.task, seen.output, seen.steps[0].arguments, seen.steps[0].effect_status) == (
        RunState.COMPLETED, None, None, None, "confirmed",
    )  # fmt: skip
    assert agent.resume("run-2") == seen and agent.events("run-2") == events
    assert waiting.get("run-1").task == "MARKER-1"


def test_finished_runs_can_be_forgotten_and_their_operations_stay(bench: Bench) -> None:
    from datetime import timedelta

    shop = Shop(bench, lose=1)
    shop.found(ProbeResult.unknown)
    runtime(shop, Call("refund", REFUND)).start("run-1")
    agent = runtime(shop, Call("refund", REFUND | {"order": "7"}))
    agent.start("run-2")
    assert agent.forget(older_than=timedelta(days=1)) == 0
    bench.clock.advance(2 * 86_400)
    assert agent.forget(older_than=timedelta(days=1)) == 1
    with pytest.raises(RunNotFoundError):
        agent.get("run-2")
    assert agent.events("run-2") == [] and agent.get("run-1").state is RunState.WAITING
    assert sorted(bench.submitted()) == [ID, "order:7:refund"]


@pytest.mark.promise("P76", part="a process that is killed while its run waits, and resumed in another")
def test_a_run_whose_process_is_killed_is_resumed_by_another_and_does_it_one_time(bench: Bench, tmp_path: Path) -> None:
    code = "import running; running.agent().start('run-1', 'refund 1042')"
    environ = {"RUNNING_OUTBOX": str(tmp_path / "outbox.txt")}
    run(code, database=bench.app.ledger.path, extra=environ | {"RUNNING_DIES": "1"}, expect=-9)
    assert (tmp_path / "outbox.txt").read_text() == "1042\n"
    again = "import running; r = running.agent().resume('run-1'); print(r.state, r.steps[0].effect_status)"
    assert run(again, database=bench.app.ledger.path, extra=environ) == "completed confirmed"
    assert (tmp_path / "outbox.txt").read_text() == "1042\n"
    assert seen(bench.app.get(ID), "probe_committed")


def test_an_absence_lets_the_worker_do_it_and_the_run_goes_on(bench: Bench) -> None:
    from settled import RetryPolicy

    shop = Shop(bench, lose=1, retry=RetryPolicy(max_attempts=2, initial=0.001, jitter=0))
    done_before: list[int] = []
    shop.found(lambda: done_before.append(1) or ABSENT)
    agent = runtime(shop, Call("refund", REFUND))
    assert agent.start("run-1").state is RunState.WAITING
    eventually(lambda: agent.resume("run-1").state is RunState.COMPLETED, seconds=20)
    assert len(shop.done) == 2  # the probe said that the first did not happen, terminally
