"""OpenAI Agents SDK: an agent refunds, is killed, and goes on; no model key is needed.

    python examples/agents/openai_agents_refund.py

The SDK hands out its state when a run waits or ends. Killed before that, there is none: the model asks again, under a new call ID.
"""

import asyncio
import json
import sys
from typing import Any

import scene
import shop
from agents import Agent, Model, ModelResponse, Runner, RunState, Usage, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from settled.integrations.openai_agents import look_again, tools

set_tracing_disabled(True)


class Script(Model):
    """Stand for a model: it asks for the refund, and ends when it was told."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        return ModelResponse(output=[self.turns.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def asks() -> ResponseFunctionToolCall:
    call_id, arguments = scene.asked()
    return ResponseFunctionToolCall(call_id=call_id, type="function_call", name="refund", arguments=json.dumps(arguments))


def ends() -> ResponseOutputMessage:
    text = ResponseOutputText(type="output_text", text="refunded", annotations=[])
    return ResponseOutputMessage(id="message", type="message", role="assistant", status="completed", content=[text])


async def run() -> Any:
    state = scene.kept()
    if state is None:
        agent = Agent(name="shop", model=Script(asks(), ends()), tools=tools(shop.host))
        result = await Runner.run(agent, "refund order 1042", context={"run_id": "run-1"})
    else:
        agent = Agent(name="shop", model=Script(ends()), tools=tools(shop.host))
        kept = await RunState.from_json(agent, json.loads(state))
        if not await look_again(shop.host, kept, run_id="run-1"):  # it still waits. Look again later
            raise SystemExit("the refund still waits")
        result = await Runner.run(agent, kept)  # no context=, which would replace the one that was kept
    if result.interruptions:
        scene.paused(json.dumps(result.to_state().to_json()))
    return next(json.loads(item.output) for item in result.new_items if item.type == "tool_call_output_item")


if __name__ == "__main__":
    sys.exit(scene.main(__file__, lambda: asyncio.run(run())))
