"""An effect as a tool: what a model is offered, what its call does, and what can never be its key."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest
from typing_extensions import TypedDict

from settled import App, ConfigurationError, EffectRejected, NextAction, ProbeResult, Status
from settled.integrations import Tool, UnsafeKeyError, effect_tool, effect_tools
from tests.conftest import eventually
from tests.lib.apps.bench import Bench, locked
from tests.lib.integrations.refunds import ID, REFUND, Refund, Shop


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.mark.promise("P74", part="a call becomes a submission")
def test_a_call_submits_and_the_worker_does_it_one_time_however_often_it_is_called(bench: Bench) -> None:
    shop = Shop(bench)
    tool = shop.tool()
    first, second = tool.call(REFUND, wait=0), tool.call(REFUND, wait=0)
    assert (first.created, second.created, first.operation_id, second.operation_id) == (True, False, ID, ID)
    assert (first.effect_status, first.next_action, first.waiting, shop.done) == (Status.PREPARED, NextAction.WAIT, True, [])
    bench.worker().turn()
    told = tool.call(REFUND)
    assert (told.effect_status, told.success, told.output, told.next_action) == (
        Status.CONFIRMED,
        True,
        {"refund": "re_1042"},
        NextAction.USE_RESULT,
    )
    assert shop.done == [REFUND]


@pytest.mark.promise("P74", part="a call that runs in this process goes through execute")
def test_an_inline_tool_runs_the_handler_under_the_protocol_and_gives_its_result(bench: Bench) -> None:
    shop = Shop(bench)
    told = shop.tool(inline=True).call(REFUND, wait=20)
    assert (told.effect_status, told.created, told.output) == (Status.CONFIRMED, True, {"refund": "re_1042"})
    assert bench.types(ID) == ["submitted", "dispatched", "returned"]


@pytest.mark.promise("P79")
def test_the_limit_of_a_call_bounds_its_waiting_and_never_the_handler(bench: Bench) -> None:
    gate = bench.gate()
    effect = bench.effect(lambda: gate.wait() and {"id": 1}, operation_id=lambda a: ID, name="slow", arguments_type=Refund)
    tool = effect_tool(effect, inline=True)
    assert effect.contract.terms.timeout_us == 30_000_000
    told = tool.call(REFUND, wait=0.05)
    assert told.waiting
    eventually(lambda: tool.get(ID).in_progress)
    told = tool.call(REFUND)  # the default limit: 2 seconds
    assert (told.effect_status, told.in_progress, told.outcome, told.next_action) == (Status.DISPATCHED, True, "UNKNOWN", NextAction.WAIT)
    gate.set()
    eventually(lambda: tool.get(ID).success)
    assert tool.get(ID).output == {"id": 1}


@pytest.mark.promise("P80")
def test_a_conflict_is_told_and_not_thrown(bench: Bench) -> None:
    shop = Shop(bench)
    tool = shop.tool(inline=True)
    tool.call(REFUND, wait=20)
    told = tool.call(REFUND | {"cents": 501}, wait=20)
    assert (told.effect_status, told.differs, told.success, told.waiting) == ("conflict", "request", False, False)
    assert told.next_action == NextAction.DO_NOT_RETRY
    assert shop.done == [REFUND]


class Line(TypedDict):
    sku: str
    count: int


class Parcel(pydantic.BaseModel):
    order: str
    lines: list[Line]
    tags: set[str] = set()
    places: dict[str, Line] = {}


@pytest.mark.promise("P81")
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"cents": True}, "cents"),
        ({"cents": "500"}, "cents"),
        ({"cents": 0}, "cents"),
        ({"cents": 100_001}, "cents"),
        ({"cents": float("nan")}, "cents"),
        ({"currency": "gbp"}, "currency"),
        ({"order": ""}, "order"),
        ({"order": "1" * 21}, "order"),
        ({"order": "x"}, "order"),
        ({"confirmed": True}, "confirmed"),
    ],
)
def test_arguments_that_do_not_fit_are_told_with_their_path_and_nothing_is_stored(bench: Bench, change: dict[str, Any], path: str) -> None:
    shop = Shop(bench)
    for tool in (shop.tool(), shop.tool(inline=True)):
        told = tool.call(REFUND | change)
        assert told.effect_status == "invalid_arguments"
        assert told.agent_message.startswith("invalid_arguments: ") and path in told.agent_message
        assert not told.success and not told.waiting
    assert bench.submitted() == [] and shop.done == []


@pytest.mark.promise("P81")
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"lines": [{"sku": "a", "count": 1, "gift": True}]}, "lines[0].gift"),
        ({"lines": [{"sku": "a", "count": True}]}, "lines[0].count"),
        ({"places": {"home": {"sku": "a", "count": 1, "x": 1}}}, "places.home.x"),
        ({"tags": ["a", "b", "a"]}, "tags: Items must be unique"),
        ({"order": None}, "order"),
    ],
)
def test_what_lies_deeper_is_checked_as_strictly(bench: Bench, change: dict[str, Any], path: str) -> None:
    effect = bench.effect(lambda: None, arguments_type=Parcel, operation_id=lambda a: a["order"])
    parcel = {"order": "1", "lines": [{"sku": "a", "count": 1}], "tags": ["a", "b"], "places": {"home": {"sku": "a", "count": 1}}}
    told = effect_tool(effect).call(parcel | change)
    assert told.effect_status == "invalid_arguments" and path in told.agent_message, told
    assert bench.submitted() == []
    assert effect_tool(effect).call(parcel, wait=0).created


@pytest.mark.promise("P81", part="what is no object, and what lacks a field")
@pytest.mark.parametrize("arguments", [{}, [], None, "{}", {"order": "1042"}])
def test_what_is_no_request_at_all_is_told_as_well(bench: Bench, arguments: Any) -> None:
    told = Shop(bench).tool().call(arguments)
    assert told.effect_status == "invalid_arguments" and bench.submitted() == []


@pytest.mark.promise("P81", part="types and rules that mean nothing")
@pytest.mark.parametrize(
    "type_",
    [
        TypedDict("Untyped", {"order": str, "price": object}),
        TypedDict("UntypedBelow", {"order": str, "prices": list[Any]}),
        pydantic.RootModel[list[str]],
        dict[str, str],
    ],
)
def test_a_type_that_says_nothing_of_a_field_is_refused_when_the_tool_is_declared(bench: Bench, type_: Any) -> None:
    effect = bench.effect(lambda: None, arguments_type=type_)
    with pytest.raises(ConfigurationError, match=r"price|declared fields"):
        effect_tool(effect)


@pytest.mark.promise("P81", part="types and rules that mean nothing")
@pytest.mark.parametrize("type_", [TypedDict("Rule", {"order": Annotated[str, pydantic.Field(pattern="(")]}), threading.Lock])
def test_a_malformed_rule_or_an_unknown_type_is_refused_when_the_contract_is_declared(bench: Bench, type_: Any) -> None:
    with pytest.raises(TypeError, match="arguments_type"):
        bench.effect(lambda: None, arguments_type=type_)


def test_a_declaration_holds_a_name_a_description_and_a_closed_schema(bench: Bench) -> None:
    tool = Shop(bench).tool()
    assert tool.name == "refund"
    assert tool.description.startswith("Give a customer the money of an order back.\n\nThis is a recorded effect")
    assert tool.schema["additionalProperties"] is False
    assert set(tool.schema["required"]) == {"order", "cents"}
    assert tool.schema["properties"]["cents"]["maximum"] == 100_000
    parcel = effect_tool(bench.effect(lambda: None, arguments_type=Parcel)).schema
    assert parcel["additionalProperties"] is False and parcel["$defs"]["Line"]["additionalProperties"] is False


def test_what_cannot_be_offered_says_what_to_add(bench: Bench) -> None:
    bare = bench.effect(lambda: None)
    with pytest.raises(ConfigurationError, match="no arguments_type"):
        effect_tool(bare)
    assert effect_tool(bare, open_arguments=True).schema["additionalProperties"] is True
    unnamed = bench.effect(lambda: None, name="unnamed", operation_id=None, arguments_type=Refund)
    with pytest.raises(ConfigurationError, match="derives no operation ID"):
        effect_tool(unnamed)
    odd = bench.effect(lambda: None, name="odd name", arguments_type=Refund)
    with pytest.raises(ConfigurationError, match="Give name="):
        effect_tool(odd)
    assert effect_tool(odd, name="odd_name").name == "odd_name"
    taken = bench.effect(lambda: None, name="taken", operation_id=None, arguments_type=TypedDict("Taken", {"operation_id": str}))
    with pytest.raises(ConfigurationError, match="already"):
        effect_tool(taken, key="argument")


def test_all_contracts_of_an_app_are_offered_at_once(bench: Bench) -> None:
    Shop(bench)
    Shop(bench, name="void")
    assert [tool.name for tool in effect_tools(bench.app)] == ["refund", "void"]
    assert [tool.name for tool in effect_tools(bench.app, only=["void"])] == ["void"]


@pytest.mark.promise("P76", part="a call ID is never a key that nobody asked for")
@pytest.mark.parametrize("risk", ["low", "medium", "high", "financial"])
def test_an_operation_id_that_holds_the_call_id_is_a_value_error(bench: Bench, risk: str) -> None:
    shop = Shop(bench, operation_id=lambda a: f"{a['order']}:{a['note']}", risk=risk)
    with pytest.raises(ValueError, match="call_7f3a"):
        shop.tool().call(REFUND | {"note": "call_7f3a"}, call_id="call_7f3a")
    assert bench.submitted() == []
    assert shop.tool().call(REFUND | {"note": "once"}, call_id="call_7f3a", wait=0).created
    assert shop.tool().call(REFUND | {"order": "7", "note": "once"}, call_id="7", wait=0).created


@pytest.mark.promise("P76", part="a call ID is refused as the key of what can hurt")
@pytest.mark.parametrize("risk", ["high", "financial"])
def test_keys_made_of_a_call_id_are_refused_for_what_can_hurt(bench: Bench, risk: str) -> None:
    with pytest.raises(UnsafeKeyError, match=risk):
        Shop(bench, risk=risk).tool(key="call")
    assert issubclass(UnsafeKeyError, ValueError)


@pytest.mark.parametrize("risk", ["low", "medium"])
def test_keys_made_of_a_call_id_are_allowed_with_a_warning_for_the_rest(bench: Bench, risk: str) -> None:
    shop = Shop(bench, risk=risk)
    with pytest.warns(UserWarning, match="only as durable as"):
        tool = shop.tool(key="call")
    told = tool.call(REFUND, scope="thread-1", call_id="call_1", wait=0)
    assert told.operation_id == "thread-1:call_1"
    with pytest.raises(ConfigurationError, match="scope"):
        tool.call(REFUND, call_id="call_1")


def test_an_operation_id_may_be_an_argument_where_the_contract_derives_none(bench: Bench) -> None:
    shop = Shop(bench, operation_id=None)
    tool = shop.tool(key="argument")
    assert "operation_id" in tool.schema["required"]
    told = tool.call(REFUND | {"operation_id": "refund-1042"}, wait=0)
    assert (told.operation_id, told.created) == ("refund-1042", True)
    assert tool.call(REFUND, operation_id="refund-1042", wait=0).created is False
    assert tool.call(REFUND).effect_status == "invalid_arguments"
    assert tool.call(REFUND | {"operation_id": 5}).effect_status == "invalid_arguments"
    bench.worker().turn()
    assert shop.done == [REFUND]


def test_an_id_that_a_caller_gives_never_replaces_the_one_that_the_contract_derives(bench: Bench) -> None:
    tool = Shop(bench).tool()
    told = tool.call(REFUND, operation_id="order:1042:refund:again")
    assert told.effect_status == "invalid_arguments" and bench.submitted() == []
    assert tool.call(REFUND, operation_id=ID, wait=0).created
    with pytest.raises(ConfigurationError, match="derives its operation ID"):
        Shop(bench, name="other").tool(key="argument")


def test_a_ledger_that_cannot_be_written_is_told_as_unknown(bench: Bench) -> None:
    app = bench.impatient()
    effect = bench.effect(lambda: None, app=app, arguments_type=Refund, operation_id=lambda a: ID)
    holder = locked(bench)
    told = effect_tool(effect).call(REFUND)
    holder.kill()
    assert (told.effect_status, told.outcome, told.next_action, told.waiting) == ("unavailable", "UNKNOWN", NextAction.WAIT, True)
    assert effect_tool(effect).call(REFUND, wait=0).created


def test_an_app_without_a_ledger_is_a_configuration_error(tmp_path: Path) -> None:
    app = App(tmp_path / "none.db")
    tool = effect_tool(app.effect(name="refund", operation_id=lambda a: ID, arguments_type=Refund)(lambda: None))
    with pytest.raises(ConfigurationError, match="settled init"):
        tool.call(REFUND)


def test_a_tool_speaks_of_its_own_operations_only(bench: Bench) -> None:
    bench.effect(lambda: None, name="mail", operation_id=lambda a: "mail-1").submit({})
    with pytest.raises(ValueError, match="belongs to 'mail'"):
        Shop(bench).tool().get("mail-1")


@pytest.mark.parametrize("inline", [False, True])
def test_the_async_call_is_the_same_call(bench: Bench, inline: bool) -> None:
    shop = Shop(bench)
    tool = shop.tool(inline=inline)
    worker = bench.worker()

    async def both() -> list[Any]:
        calls = asyncio.gather(tool.acall(REFUND, wait=20), tool.acall(REFUND, wait=20))
        if not inline:
            await asyncio.to_thread(eventually, lambda: bench.submitted() and worker.turn())
        return await calls

    told = asyncio.run(both())
    assert [one.effect_status for one in told] == [Status.CONFIRMED] * 2
    assert sorted(one.created for one in told) == [False, True]
    assert shop.done == [REFUND]


@pytest.mark.promise("P26", part="a tool that is called twice in one turn, and from many threads")
def test_parallel_calls_of_one_business_action_are_one_operation(bench: Bench) -> None:
    shop = Shop(bench)
    tool, told, start = shop.tool(inline=True), list[Any](), threading.Barrier(8)

    def call(number: int) -> None:
        start.wait()
        told.append(tool.call(REFUND | {"note": f"in other words {number}"}, wait=20))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.operation_id for one in told} == {ID}
    assert sum(one.created for one in told) == 1
    assert len(shop.done) == 1


def test_a_refund_in_other_words_after_an_unknown_is_the_same_refund(bench: Bench) -> None:
    shop = Shop(bench, lose=1)
    shop.found(lambda: ProbeResult.unknown())
    tool = shop.tool(inline=True)
    first = tool.call(REFUND | {"note": "customer asked"}, wait=20)
    assert (first.effect_status, first.next_action) == (Status.OUTCOME_UNKNOWN, NextAction.WAIT)
    again = tool.call(REFUND | {"note": "The first refund failed, so refund the order once more, please."}, wait=20)
    assert (again.effect_status, again.created) == (Status.OUTCOME_UNKNOWN, False)
    more = tool.call(REFUND | {"cents": 499}, wait=20)
    assert more.effect_status == "conflict"
    assert len(shop.done) == 1


def tool_names(tool: Tool) -> set[str]:
    return {name for name in dir(tool) if not name.startswith("_")}


@pytest.mark.promise("S39", part="the neutral core")
def test_a_tool_offers_no_verb_of_an_operator(bench: Bench) -> None:
    offered = tool_names(Shop(bench).tool())
    assert offered == {
        "acall", "app", "call", "contract", "description", "get", "identify", "inline", "key", "name", "risk", "schema", "told", "wait",
    }  # fmt: skip


@pytest.mark.promise("S129", part="what a model sees of an output and of a refusal holds no sensitive value")
def test_a_sensitive_value_reaches_no_model_neither_in_an_output_nor_in_a_refusal(bench: Bench) -> None:
    shop = Shop(bench, sensitive_fields=("note",), identity_fields=None)
    shop.tool(inline=True).call(REFUND | {"note": "CARD-4242"}, wait=20)
    terms: dict[str, Any] = {"arguments_type": Refund, "sensitive_fields": ("note",)}
    echo = bench.effect(lambda arguments: {"said": arguments["note"], "note": "x"}, name="echo", operation_id=lambda a: "echo-1", **terms)
    told = effect_tool(echo, inline=True).call(REFUND | {"note": "CARD-4242"}, wait=20)
    assert told.output == {"said": "CARD-4242", "note": "x"}  # the host has it whole
    assert told.for_model()["output"] == {"said": "***", "note": "***"}

    def refuse(arguments: dict[str, Any]) -> None:
        raise EffectRejected(f"the card {arguments['note']} is closed")

    refused = bench.effect(refuse, name="refuse", operation_id=lambda a: "refuse-1", **terms)
    said = effect_tool(refused, inline=True).call(REFUND | {"note": "CARD-4242"}, wait=20).for_model()
    assert (said["effect_status"], "CARD" in str(said), "***" in said["refusal"]) == ("rejected", False, True)


def test_a_refusal_stays_a_refusal_however_often_and_in_whatever_words_it_is_asked_for(bench: Bench) -> None:
    calls = list[int]()

    def refuse(arguments: dict[str, Any]) -> None:
        calls.append(1)
        raise EffectRejected("no such order")

    shop = Shop(bench)
    effect = bench.effect(refuse, name="refuse", operation_id=lambda a: ID, arguments_type=Refund, identity_fields=("order", "cents"))
    tool = effect_tool(effect, inline=True)
    for words in ("", "please", "it was refused by mistake, so do it again"):
        told = tool.call(REFUND | {"note": words}, wait=20)
        assert (told.effect_status, told.next_action, told.for_model()["refusal"]) == (
            "rejected", "do_not_retry", "EffectRejected: no such order",
        )  # fmt: skip
    assert (calls, shop.done) == ([1], [])
