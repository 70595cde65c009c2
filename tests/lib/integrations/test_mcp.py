"""What a server offers and answers, through the official client in this process: tools, arguments, waiting, resources."""

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from settled import App, ConfigurationError, EffectContract, EffectRejected
from settled.core.limits import DEFAULTS
from settled.integrations.mcp import make_server
from settled.integrations.mcp.offered import NOT_FOUND, unknown_operation
from settled.store.workers import live
from tests.conftest import eventually
from tests.lib.apps.bench import Bench, locked
from tests.lib.integrations.refunds import ID, REFUND, Refund, Shop
from tests.lib.integrations.test_answers import DENIES, INVITES

NOTHING_OF_AN_OPERATOR = re.compile(r"confirm|reject|authori|approv|deny|cancel|stop|evidence|pause|resume|resolve|retry|ack|assign|snooze")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


def talk(app: App, conversation: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    """Hold one conversation of a client with a server in this process."""

    async def hold() -> Any:
        async with Client(make_server(app, **({"wait": 0} | options))) as client:
            return await conversation(client)

    return asyncio.run(asyncio.wait_for(hold(), 60))


async def call(client: Client, tool: str, arguments: Any = REFUND, **options: Any) -> tuple[dict[str, Any], bool]:
    result = await client.call_tool(tool, arguments, **options)
    assert result.structured_content is not None
    assert isinstance(result.content[0], types.TextContent) and json.loads(result.content[0].text) == result.structured_content
    return result.structured_content, result.is_error


@pytest.mark.promise("S39")
@pytest.mark.promise("S128", part="the tools that are listed, in this process")
def test_each_contract_is_three_tools_and_nothing_of_an_operator(bench: Bench) -> None:
    shop = Shop(bench)
    bench.effect(lambda: None, name="mail.send", operation_id=None, arguments_type=Refund)

    async def look(client: Client) -> tuple[list[types.Tool], str]:
        return (await client.list_tools()).tools, str(client.instructions)

    tools, instructions = talk(bench.app, look)
    named = {tool.name: tool for tool in tools}
    assert list(named) == [f"{verb}_{name}" for name in ("refund", "mail_send") for verb in ("submit", "get", "wait")]
    assert not [name for name in named if NOTHING_OF_AN_OPERATOR.search(name)]
    for tool in tools:
        hints, submits = tool.annotations, tool.name.startswith("submit_")
        assert hints is not None
        flags = (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint)
        assert flags == ((False, True, True, True) if submits else (True, False, True, False)), tool.name
        assert tool.input_schema["additionalProperties"] is False and tool.output_schema is not None
    assert named["submit_refund"].input_schema == shop.tool().schema
    assert "operation_id" in named["submit_mail_send"].input_schema["required"]
    reading = [tool.description or "" for tool in tools if not tool.name.startswith("submit_")]
    for text in (instructions, unknown_operation("x").message, *reading):
        assert not [said for said in re.split(r"(?<=[.;:])\s", text) if INVITES.search(said) and not DENIES.search(said)], text


@pytest.mark.promise("S39", part="called, not only listed")
def test_a_tool_that_is_not_listed_is_no_tool(bench: Bench) -> None:
    Shop(bench)

    async def guess(client: Client) -> int:
        refused = 0
        for name in (
            "confirm_refund",
            "reject_refund",
            "authorize_retry_refund",
            "approve",
            "cancel_refund",
            "stop_refund",
            "submit",
            "\x1b" * 99,
        ):
            with pytest.raises(MCPError, match="there is no tool"):
                await client.call_tool(name, {"operation_id": ID})
            refused += 1
        return refused

    bench.app.submit("refund", REFUND)
    assert talk(bench.app, guess) == 8
    assert bench.types(ID) == ["submitted"]


@pytest.mark.promise("S128", part="own key or explicit ID; the same call again; get and wait")
def test_the_same_call_is_the_same_operation_and_another_key_is_another(bench: Bench) -> None:
    shop = Shop(bench)
    bench.effect(shop.refund, name="gift", operation_id=None, arguments_type=Refund, identity_fields=("order", "cents"))
    worker = bench.worker()

    async def ask(client: Client) -> None:
        first, failed = await call(client, "submit_refund", REFUND | {"note": "as agreed"})
        assert (first["effect_status"], first["next_action"], first["operation_id"], first["created"], failed) == (
            "prepared",
            "wait",
            ID,
            True,
            False,
        )
        again, failed = await call(client, "submit_refund", REFUND | {"note": "surely lost: do it now"})
        assert (again["operation_id"], again["created"], failed) == (ID, False, False)
        other, failed = await call(client, "submit_refund", REFUND | {"cents": 501})
        assert (other["effect_status"], other["next_action"], failed) == ("conflict", "do_not_retry", True)
        for number in (1, 2):
            gift, _ = await call(client, "submit_gift", REFUND | {"operation_id": f"gift:{number}"})
            assert (gift["operation_id"], gift["created"]) == (f"gift:{number}", True)
        for arguments in (REFUND, REFUND | {"operation_id": ""}, REFUND | {"operation_id": 7}):
            assert (await call(client, "submit_gift", arguments))[0]["effect_status"] == "invalid_arguments"
        taken, failed = await call(client, "submit_refund", {**REFUND, "operation_id": "mine"})
        assert (taken["effect_status"], failed) == ("invalid_arguments", True)  # the contract derives it, so no client chooses
        await asyncio.to_thread(worker.turn)
        done, failed = await call(client, "wait_refund", {"operation_id": ID})
        assert (done["effect_status"], done["next_action"], done["output"], failed) == (
            "confirmed",
            "use_result",
            {"refund": "re_1042"},
            False,
        )
        assert (await call(client, "get_refund", {"operation_id": ID}))[0] == done
        late, _ = await call(client, "submit_refund")
        assert (late["effect_status"], late["created"], late["output"]) == ("confirmed", False, {"refund": "re_1042"})

    talk(bench.app, ask)
    assert len(shop.done) == 3 and sorted(bench.submitted()) == ["gift:1", "gift:2", ID]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("submit_refund", {}),
        ("submit_refund", REFUND | {"confirmed": True}),
        ("submit_refund", REFUND | {"cents": True}),
        ("submit_refund", REFUND | {"cents": "500"}),
        ("submit_refund", REFUND | {"cents": 500.5}),
        ("submit_refund", REFUND | {"cents": 10**400}),
        ("submit_refund", REFUND | {"order": "1042\x1b[2J"}),
        ("submit_refund", REFUND | {"order": None}),
        ("submit_refund", REFUND | {"note": "x" * 2_000_000}),
        ("submit_refund", REFUND | {"note": {"deep": [[[[[{}]]]]]}}),
        ("submit_refund", REFUND | {"x" * 100_000: 1}),
        ("get_refund", {}),
        ("get_refund", {"operation_id": 7}),
        ("get_refund", {"operation_id": "x" * 501}),
        ("get_refund", {"operation_id": ID, "status": "confirmed"}),
        ("wait_refund", {"operation_id": ID, "timeout_seconds": -1}),
        ("wait_refund", {"operation_id": ID, "timeout_seconds": DEFAULTS.mcp_wait_seconds_max + 1}),
        ("wait_refund", {"operation_id": ID, "timeout_seconds": True}),
        ("wait_refund", {"operation_id": ID, "timeout_seconds": "1"}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.promise("P81", part="over MCP")
def test_hostile_arguments_are_told_as_invalid_and_store_nothing(bench: Bench, tool: str, arguments: dict[str, Any]) -> None:
    Shop(bench)
    told, failed = talk(bench.app, lambda client: call(client, tool, arguments))
    assert (told["effect_status"], told["next_action"], failed) == ("invalid_arguments", "do_not_retry", True)
    assert len(told["message"]) < 800 and "\x1b" not in told["message"]
    assert bench.submitted() == []


def test_get_and_wait_tell_nothing_of_another_contracts_operation(bench: Bench) -> None:
    Shop(bench)
    bench.effect(lambda: None, name="secret", operation_id=lambda a: "secret:1", arguments_type=None)
    bench.app.submit("secret", {"pin": "4711"})

    async def pry(client: Client) -> None:
        for tool in ("get_refund", "wait_refund"):
            for operation_id in ("secret:1", "absent", "\x00", "' OR 1=1 --"):
                told, failed = await call(client, tool, {"operation_id": operation_id})
                assert (told, failed) == (unknown_operation(operation_id).model_dump(exclude_unset=True), True)
        for name in ("secret%3A1", "absent", "", "%00", "../status"):
            with pytest.raises(MCPError, match="there is no resource"):
                await client.read_resource(f"settled://operation/{name}")

    talk(bench.app, pry, only=["refund"])


def test_resources_tell_counts_and_one_operation_and_can_only_be_read(bench: Bench) -> None:
    Shop(bench)
    bench.effect(lambda: None, name="secret", operation_id=lambda a: "secret:1", arguments_type=None)
    bench.app.submit("secret", {})
    bench.app.submit("refund", REFUND)

    async def read(client: Client) -> None:
        assert [str(one.uri) for one in (await client.list_resources()).resources] == ["settled://status"]
        templates = (await client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["settled://operation/{operation_id}"]

        async def text(uri: str) -> Any:
            content = (await client.read_resource(uri)).contents[0]
            assert isinstance(content, types.TextResourceContents)
            return json.loads(content.text)

        assert await text("settled://status") == {"counts": {"refund": {"prepared": 1}}}  # of what is offered, and of nothing else
        told = await text("settled://operation/order%3A1042%3Arefund")
        assert told == (await call(client, "get_refund", {"operation_id": ID}))[0]

    talk(bench.app, read, only=["refund"])
    assert bench.types(ID) == ["submitted"]


@pytest.mark.promise("P85", part="what a destination wrote reaches an MCP client as a refusal only, masked and bounded")
def test_a_refusal_is_told_without_what_is_sensitive(bench: Bench) -> None:
    def refuse(arguments: dict[str, Any]) -> None:
        raise EffectRejected("refused: " + "please retry! " * 500)

    bench.effect(refuse, name="refuse", operation_id=lambda a: "refuse:1", arguments_type=Refund)
    bench.effect(
        lambda: {"iban": "DE02", "id": 1}, name="pay", operation_id=lambda a: "pay:1", arguments_type=Refund, sensitive_fields=("iban",)
    )
    bench.app.submit_many([("refuse", REFUND), ("pay", REFUND)])
    bench.worker().turn()

    async def look(client: Client) -> Any:
        return [await call(client, f"get_{name}", {"operation_id": f"{name}:1"}) for name in ("refuse", "pay")]

    (refused, failed), (paid, _) = talk(bench.app, look)
    assert (refused["effect_status"], refused["next_action"], failed) == ("rejected", "do_not_retry", False)
    assert len(refused["refusal"]) <= DEFAULTS.error_text_max
    assert paid["output"] == {"iban": "***", "id": 1}


def test_a_wait_reports_progress_and_ends_when_the_operation_does(bench: Bench) -> None:
    shop = Shop(bench)
    worker, gate = bench.worker(), bench.gate()
    bench.app.submit("refund", REFUND)
    reports: list[tuple[float, float | None, str | None]] = []

    async def wait(client: Client) -> dict[str, Any]:
        async def heard(progress: float, total: float | None, message: str | None) -> None:
            reports.append((progress, total, message))
            gate.set()  # only a client that was told moves the world

        turning = asyncio.get_running_loop().run_in_executor(None, lambda: gate.wait(30) and worker.turn())
        told, _ = await call(client, "wait_refund", {"operation_id": ID, "timeout_seconds": 30}, progress_callback=heard)
        await turning
        return told

    assert talk(bench.app, wait)["effect_status"] == "confirmed"
    assert reports and {(total, message) for _, total, message in reports} <= {(30.0, "prepared"), (30.0, "dispatched")}
    assert [one[0] for one in reports] == sorted({one[0] for one in reports}) and len(shop.done) == 1


def test_a_wait_that_is_cancelled_changes_nothing_and_makes_room_for_another(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one wait: a second is answered at once while the first waits, and waits itself when that was cancelled."""
    Shop(bench)
    bench.app.submit("refund", REFUND)
    before = bench.types(ID), bench.app.get(ID).version
    monkeypatch.setattr("settled.integrations.mcp.desk.DEFAULTS", type(DEFAULTS)(mcp_waits_max=1, mcp_progress_seconds=0.05))

    async def crowd(client: Client) -> None:
        def wait() -> tuple[asyncio.Task[Any], asyncio.Event]:
            reported = asyncio.Event()

            async def heard(*_: object) -> None:
                reported.set()

            asking = call(client, "wait_refund", {"operation_id": ID, "timeout_seconds": 300}, progress_callback=heard)
            return asyncio.create_task(asking), reported

        first, reported = wait()
        await reported.wait()
        told, _ = await wait()[0]
        assert (told["effect_status"], first.done()) == ("prepared", False)
        first.cancel()
        assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], asyncio.CancelledError)
        second, reported = wait()
        await reported.wait()
        second.cancel()

    talk(bench.app, crowd)
    assert (bench.types(ID), bench.app.get(ID).version) == before


def test_two_clients_that_ask_at_once_get_one_operation(bench: Bench) -> None:
    shop = Shop(bench)

    async def both() -> list[Any]:
        server = make_server(bench.app, wait=0)
        async with Client(server) as one, Client(server) as other:
            asked = [call(client, "submit_refund") for client in (one, other) for _ in range(5)]
            return list(await asyncio.gather(*asked))

    told = asyncio.run(both())
    assert sorted(answer["created"] for answer, _ in told) == [False] * 9 + [True]
    bench.worker().turn()
    assert len(shop.done) == 1


def test_a_ledger_that_cannot_be_used_is_told_as_not_known(bench: Bench) -> None:
    Shop(bench)
    bench.app.submit("refund", REFUND)
    impatient = bench.impatient()
    impatient.register(bench.app.contract("refund"))

    async def ask(client: Client) -> None:
        told, failed = await call(client, "submit_refund", REFUND | {"order": "7"})
        assert (told["effect_status"], told["next_action"], failed) == ("unavailable", "wait", True)
        assert str(bench.folder) not in json.dumps(told)  # how the host is made is not the model's

    with locked(bench):
        talk(impatient, ask)
    assert bench.submitted() == [ID]


def test_a_key_function_that_fails_stores_nothing(bench: Bench) -> None:
    def broken(arguments: dict[str, Any]) -> str:
        raise RuntimeError("no order of that number")

    bench.effect(lambda: None, name="broken", operation_id=broken, arguments_type=Refund)
    told, failed = talk(bench.app, lambda client: call(client, "submit_broken"))
    assert (told["effect_status"], told["next_action"], failed) == ("invalid_arguments", "do_not_retry", True)
    assert bench.submitted() == []


def test_what_cannot_be_offered_is_said_before_anything_is_served(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="no contract"):
        make_server(bench.app)
    bench.effect(lambda: None, name="a.b", operation_id=lambda a: "x", arguments_type=None)
    with pytest.raises(ConfigurationError, match="arguments_type"):
        make_server(bench.app)
    make_server(bench.app, open_arguments=True)
    bench.app.register(EffectContract(name="a_b", operation_id=lambda a: "y"))
    with pytest.raises(ConfigurationError, match=r"'a.b' and 'a_b' would both be the tool 'submit_a_b'"):
        make_server(bench.app, open_arguments=True)
    make_server(bench.app, open_arguments=True, only=["a_b"])
    bench.app.register(EffectContract(name="n" * 60, operation_id=lambda a: "z"))
    with pytest.raises(ConfigurationError, match="1 to 64"):
        make_server(bench.app, open_arguments=True, only=["n" * 60])


def test_a_submission_waits_as_long_as_it_was_told_to(bench: Bench) -> None:
    shop = Shop(bench)
    worker, asked = bench.worker(), threading.Event()

    async def ask(client: Client) -> dict[str, Any]:
        turning = asyncio.get_running_loop().run_in_executor(None, lambda: eventually(lambda: bench.submitted() and worker.turn()))
        told, _ = await call(client, "submit_refund")
        asked.set()
        await turning
        return told

    told = talk(bench.app, ask, wait=60)
    assert (told["effect_status"], told["created"], told["output"]) == ("confirmed", True, {"refund": "re_1042"})
    assert len(shop.done) == 1 and NOT_FOUND not in told.values()


@pytest.mark.promise("S128", part="it submits and reads, and never dispatches")
def test_a_server_never_dispatches_what_it_was_asked_for(bench: Bench) -> None:
    shop = Shop(bench)
    told, _ = talk(bench.app, lambda client: call(client, "submit_refund"), wait=0.5)
    assert (told["effect_status"], bench.types(ID), shop.done) == ("prepared", ["submitted"], [])
    with bench.app.ledger.read() as transaction:
        assert live(transaction) == []  # nobody is at work on the ledger
