"""Pydantic AI: an agent refunds, is killed, and goes on; no model key is needed.

    python examples/agents/pydantic_ai_refund.py

The history is handed out when a run ends or is deferred. Killed before that, there is none: the model asks again, under a new call ID.
"""

import asyncio
import sys
from typing import Any

import scene
import shop
from pydantic_ai import Agent, DeferredToolRequests, models
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from settled.integrations.pydantic_ai import look_again, toolset

models.ALLOW_MODEL_REQUESTS = False


def returns(messages: list[ModelMessage]) -> list[Any]:
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stand for a model: it asks for the refund, and ends when it was told."""
    if returns(messages):
        return ModelResponse(parts=[TextPart("refunded")])
    call_id, arguments = scene.asked()
    return ModelResponse(parts=[ToolCallPart("refund", arguments, tool_call_id=call_id)])


async def run() -> Any:
    agent = Agent(FunctionModel(script), toolsets=[toolset(shop.host)], output_type=[str, DeferredToolRequests])
    history = scene.kept()
    if history is None:
        result = await agent.run("refund order 1042")
    else:
        messages = ModelMessagesTypeAdapter.validate_json(history)
        results = await look_again(shop.host, messages)  # None: it still waits. Look again later
        if results is None:
            raise SystemExit("the refund still waits")
        result = await agent.run(message_history=messages, deferred_tool_results=results)
    if isinstance(result.output, DeferredToolRequests):
        scene.paused(ModelMessagesTypeAdapter.dump_json(result.all_messages()).decode())
    return returns(result.all_messages())[-1]


if __name__ == "__main__":
    sys.exit(scene.main(__file__, lambda: asyncio.run(run())))
