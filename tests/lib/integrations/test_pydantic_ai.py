"""Pydantic AI: what a deferred run keeps, what it is resumed with, and what the destination then counts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import ConfigurationError
from settled.integrations import Host, Policy
from tests.lib.apps.bench import Bench
from tests.lib.integrations.refunds import ID, REFUND, Shop

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed: its adapter was NOT tested. pip install 'settled[test]'")

from pydantic_ai import Agent, DeferredToolRequests, models
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from settled.integrations.pydantic_ai import look_again, toolset

FREE = Policy(confirm=False)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


@pytest.fixture(autouse=True)
def no_model_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


def returns(messages: list[ModelMessage]) -> list[Any]:
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def agent(host: Host, *calls: tuple[str, dict[str, Any]]) -> Any:
    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if returns(messages):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(name, args, tool_call_id=f"call_{n:08x}") for n, (name, args) in enumerate(calls)])

    plain = FunctionToolset()

    @plain.tool_plain
    def lookup(order: str) -> str:
        return f"found {order}"

    return Agent(FunctionModel(script), toolsets=[plain, toolset(host)], output_type=[str, DeferredToolRequests])


def saved_and_loaded(result: Any) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(result.all_messages()))


def told(messages: list[ModelMessage]) -> list[str]:
    return sorted(one["effect_status"] if isinstance(one, dict) else one for one in returns(messages))


@pytest.mark.promise("P75", part="Pydantic AI: an effect that waits defers the run")
def test_a_run_is_deferred_until_the_store_says_otherwise(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool()], policy=FREE, wait=0)
    calls = [("refund", REFUND), ("refund", REFUND | {"order": "7"}), ("lookup", {"order": "1042"})]
    first = agent(host, *calls).run_sync("refund 1042")
    assert isinstance(first.output, DeferredToolRequests) and len(first.output.calls) == 2
    messages = saved_and_loaded(first)
    assert asyncio.run(look_again(host, messages)) is None and shop.done == []
    bench.worker().turn()
    results = asyncio.run(look_again(host, messages))
    second = agent(host, *calls).run_sync(message_history=messages, deferred_tool_results=results)
    assert second.output == "done" and told(second.all_messages()) == ["confirmed", "confirmed", "found 1042"]
    assert second.conversation_id == first.conversation_id
    assert len(shop.done) == 2 and sorted(bench.submitted()) == [ID, "order:7:refund"]
    with pytest.raises(ConfigurationError, match="no effect of this history waits"):
        asyncio.run(look_again(host, second.all_messages()))


@pytest.mark.promise("P77", part="Pydantic AI: the host confirms")
def test_a_deferred_call_waits_for_the_host_and_metadata_is_not_believed(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], wait=20)
    first = agent(host, ("refund", REFUND)).run_sync("refund 1042")
    (metadata,) = first.output.metadata.values()
    assert metadata["settled"]["effect_status"] == "confirmation_required" and bench.submitted() == []
    messages = saved_and_loaded(first)
    metadata["settled"]["effect_status"] = "confirmed"
    assert asyncio.run(look_again(host, messages)) is None and bench.submitted() == []
    host.confirm(*(one.confirm(actor="ana") for one in host.pending(first.conversation_id)))
    results = asyncio.run(look_again(host, messages))
    second = agent(host).run_sync(message_history=messages, deferred_tool_results=results)
    assert told(second.all_messages()) == ["confirmed"] and shop.done == [REFUND]


@pytest.mark.promise("P80", part="Pydantic AI")
def test_what_did_not_happen_is_told_and_the_run_goes_on(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], policy=FREE, wait=20)
    bad = ("refund", {"order": "1042", "cents": True})
    assert told(agent(host, ("refund", REFUND), bad).run_sync("refund").all_messages()) == ["confirmed", "invalid_arguments"]
    assert told(agent(host, ("refund", REFUND | {"cents": 501})).run_sync("refund").all_messages()) == ["conflict"]
    denied = Host([shop.tool()], policy=Policy(allow=[]))
    assert told(agent(denied, ("refund", REFUND | {"order": "8"})).run_sync("refund").all_messages()) == ["denied"]
    assert shop.done == [REFUND]
