"""OpenAI Agents SDK: what its gate and its state say, and what the destination then counts."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled.integrations import Host, Policy
from tests.lib.apps.bench import Bench
from tests.lib.integrations.refunds import ID, REFUND, Shop

pytest.importorskip("agents", reason="OpenAI Agents SDK is not installed: its adapter was NOT tested. pip install 'settled[test]'")

from agents import Agent, Model, ModelResponse, Runner, RunState, Usage, set_tracing_disabled
from agents.exceptions import UserError
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from settled.integrations.openai_agents import look_again, tools

set_tracing_disabled(True)
FREE = Policy(confirm=False)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


class Script(Model):
    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        return ModelResponse(output=self.turns.pop(0), usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def ends() -> list[Any]:
    text = ResponseOutputText(type="output_text", text="done", annotations=[])
    return [ResponseOutputMessage(id="message", type="message", role="assistant", status="completed", content=[text])]


def asks(*arguments: Any) -> list[Any]:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in arguments]
    return [
        ResponseFunctionToolCall(call_id=f"call_{number:08x}", type="function_call", name="refund", arguments=text)
        for number, text in enumerate(texts, 1)
    ]


def start(host: Host, *turns: list[Any], context: Any = None) -> Any:
    agent = Agent(name="shop", model=Script(*turns), tools=tools(host))
    return asyncio.run(Runner.run(agent, "refund 1042", context={"run_id": "run-1"} if context is None else context))


def resume(host: Host, saved: str, *, approve: bool = False) -> Any:
    async def run() -> Any:
        agent = Agent(name="shop", model=Script(ends()), tools=tools(host))
        state = await RunState.from_json(agent, json.loads(saved))
        for item in state.get_interruptions() if approve else []:
            state.approve(item)
        if not approve:
            await look_again(host, state, run_id="run-1")
        return await Runner.run(agent, state)

    return asyncio.run(run())


def told(result: Any) -> list[str]:
    return [json.loads(item.output)["effect_status"] for item in result.new_items if item.type == "tool_call_output_item"]


@pytest.mark.promise("P75", part="OpenAI Agents SDK: an effect that waits is an interruption")
def test_a_run_waits_until_the_store_says_otherwise_whatever_was_approved(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool()], policy=FREE, wait=0)
    first = start(host, asks(REFUND, REFUND | {"order": "7"}))
    saved = json.dumps(first.to_state().to_json())
    assert len(first.interruptions) == 2 and sorted(bench.submitted()) == [ID, "order:7:refund"]
    assert len(resume(host, saved).interruptions) == 2  # nothing is settled yet
    assert told(resume(host, saved, approve=True)) == ["prepared", "prepared"]  # an approval is not believed
    assert shop.done == []
    bench.worker().turn()
    late = resume(host, saved)
    assert told(late) == ["confirmed", "confirmed"] and late.final_output == "done"
    assert len(shop.done) == 2 and len(bench.submitted()) == 2


@pytest.mark.promise("P77", part="OpenAI Agents SDK: the host confirms, and an approval does not")
def test_an_approval_is_no_confirmation_of_the_host(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], wait=20)
    saved = json.dumps(start(host, asks(REFUND)).to_state().to_json())
    assert told(resume(host, saved, approve=True)) == ["confirmation_required"] and bench.submitted() == []
    host.confirm(*(one.confirm(actor="ana") for one in host.pending("run-1")))
    assert told(resume(host, saved)) == ["confirmed"] and shop.done == [REFUND]


@pytest.mark.promise("P80", part="OpenAI Agents SDK")
def test_what_did_not_happen_is_told_and_the_run_goes_on(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], policy=FREE, wait=20)
    assert told(start(host, asks(REFUND, {"order": "1042", "cents": True}), ends())) == ["confirmed", "invalid_arguments"]
    assert told(start(host, asks(REFUND | {"cents": 501}), ends())) == ["conflict"]
    assert told(start(Host([shop.tool()], policy=Policy(allow=[])), asks(REFUND | {"order": "8"}), ends())) == ["denied"]
    assert shop.done == [REFUND]


def test_a_run_without_an_id_sends_nothing(bench: Bench) -> None:
    shop = Shop(bench)
    host = Host([shop.tool(inline=True)], policy=FREE)
    with pytest.raises(UserError, match=r"the run has no ID\. Nothing was sent"):
        start(host, asks(REFUND), ends(), context={"user": "ana"})
    assert bench.submitted() == [] and shop.done == []
