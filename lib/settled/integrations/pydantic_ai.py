"""Pydantic AI: a toolset of effects; a call that waits is a `CallDeferred`, and the run ends in `DeferredToolRequests`.

Promise: no effect is done here, and nothing that a resume brings is believed: `look_again` makes the same calls again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from settled.core.errors import ConfigurationError
from settled.integrations.host import Host
from settled.integrations.needs import need
from settled.integrations.tools import Tool

_ai = need("pydantic_ai", "pydantic-ai")
_messages = need("pydantic_ai.messages", "pydantic-ai")
_FunctionToolset = need("pydantic_ai.toolsets", "pydantic-ai").FunctionToolset
_WrapperToolset: Any = need("pydantic_ai.toolsets", "pydantic-ai").WrapperToolset


def toolset(host: Host, *, run_id: Callable[[Any], str] = lambda context: str(context.conversation_id)) -> Any:
    """Return the host's tools for `Agent(…, toolsets=[…], output_type=[str, DeferredToolRequests])`.

    `run_id` finds the run's ID in the context; the conversation's ID is the same after a resume.
    """
    return SettledToolset(_FunctionToolset([_declared(tool) for tool in host.tools.values()]), host=host, run_id=run_id)


async def look_again(host: Host, messages: Iterable[Any], *, run_id: str | None = None) -> Any:
    """Return `deferred_tool_results` for a saved history, read from the store; None while one of its effects still waits.

    `run_id` is needed where `toolset` was given one. Raises ConfigurationError where no call of an effect is open.
    """
    history = list(messages)
    asked = next((message for message in reversed(history) if isinstance(message, _messages.ModelResponse)), None)
    answered = {part.tool_call_id for message in history for part in message.parts if isinstance(part, _messages.ToolReturnPart)}
    calls = [] if asked is None else asked.tool_calls
    open_calls = [one for one in calls if one.tool_call_id not in answered and one.tool_name in host.tools]
    if asked is None or not open_calls:
        raise ConfigurationError("no effect of this history waits. Nothing was sent. Run the agent with it as it is")
    named = run_id or str(asked.conversation_id)
    told = {
        one.tool_call_id: await host.acall(one.tool_name, one.args_as_dict(), run_id=named, call_id=one.tool_call_id) for one in open_calls
    }
    if any(result.waiting for result in told.values()):
        return None
    return _ai.DeferredToolResults(calls={call_id: result.for_model() for call_id, result in told.items()})


@dataclass
class SettledToolset(_WrapperToolset):  # type: ignore[misc]  # it is there, or this module is not imported
    """A toolset whose named tools are the host's effects; the rest runs as it is."""

    host: Host = field(kw_only=True)
    run_id: Callable[[Any], str] = field(kw_only=True)

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        """Make the call behind the policy, and defer it while it waits."""
        if name not in self.host.tools:
            return await super().call_tool(name, tool_args, ctx, tool)
        result = await self.host.acall(name, tool_args, run_id=self.run_id(ctx), call_id=ctx.tool_call_id)
        if result.waiting:
            raise _ai.CallDeferred(metadata={"settled": result.for_model()})
        return result.for_model()


def _declared(tool: Tool) -> Any:
    def never(**_: Any) -> str:
        raise ConfigurationError(f"tool {tool.name!r} was called without its toolset. Nothing was sent.")

    return _ai.Tool.from_schema(never, name=tool.name, description=tool.description, json_schema=tool.schema)
