"""LangGraph: named tools of a `ToolNode`, or of `create_agent`, become durable; a call that waits is an interrupt.

Promise: no effect is done here, and a resume value is never looked at: whatever it says, the store is read again.
"""

import json
from typing import Any

from settled.core.errors import ConfigurationError
from settled.integrations.answers import ToolResult
from settled.integrations.host import Host
from settled.integrations.needs import need
from settled.integrations.tools import Tool

_interrupt = need("langgraph.types", "langgraph").interrupt
_messages = need("langchain_core.messages", "langgraph")
_StructuredTool = need("langchain_core.tools", "langgraph").StructuredTool


def tools(host: Host) -> list[Any]:
    """Return the host's tools for `ToolNode`, `create_agent` or `bind_tools`. Their bodies never run: `durable` stands before them."""
    return [_declared(tool) for tool in host.tools.values()]


def durable(host: Host) -> Any:
    """Return what `ToolNode(tools, wrap_tool_call=…)` takes. Needs a checkpointer and a `thread_id`, which is the run ID.

    Tools that the host does not offer run as they are. On resume the node's bodies run again, and find their operations.
    """

    def wrap(request: Any, execute: Any) -> Any:
        named = _named(host, request)
        if named is None:
            return execute(request)
        result = host.call(**named)
        while result.waiting:
            _interrupt(_shown(result))  # returns an answer from before, which proves nothing, or ends this run of the body
            result = host.call(**named, wait=0)
        return _answer(request, result)

    return wrap


def adurable(host: Host) -> Any:
    """Return `durable` for `ToolNode(tools, awrap_tool_call=…)`, which does not block the loop."""

    async def wrap(request: Any, execute: Any) -> Any:
        named = _named(host, request)
        if named is None:
            return await execute(request)
        result = await host.acall(**named)
        while result.waiting:
            _interrupt(_shown(result))
            result = await host.acall(**named, wait=0)
        return _answer(request, result)

    return wrap


def middleware(host: Host) -> Any:
    """Return what `create_agent(…, middleware=[…])` takes: it brings the host's tools, and makes them durable."""
    base = need("langchain.agents.middleware", "langgraph").AgentMiddleware
    made = type("Settled", (base,), {"wrap_tool_call": staticmethod(durable(host)), "awrap_tool_call": staticmethod(adurable(host))})()
    made.tools = tools(host)
    return made


def _declared(tool: Tool) -> Any:
    def never(**_: Any) -> str:
        raise ConfigurationError(f"tool {tool.name!r} was called without durable(host). Nothing was sent. Give ToolNode wrap_tool_call=")

    return _StructuredTool.from_function(never, name=tool.name, description=tool.description, args_schema=tool.schema)


def _named(host: Host, request: Any) -> dict[str, Any] | None:
    call = request.tool_call
    if call["name"] not in host.tools:
        return None
    thread = request.runtime.config.get("configurable", {}).get("thread_id")
    if thread is None:
        raise ConfigurationError("an effect waits by its thread, and there is no thread_id in the config. Nothing was sent. Give one")
    return {"name": call["name"], "arguments": call["args"], "run_id": str(thread), "call_id": call["id"]}


def _shown(result: ToolResult) -> dict[str, Any]:
    return {"settled": result.for_model(), "tool": result.tool}


def _answer(request: Any, result: ToolResult) -> Any:
    text, status = json.dumps(result.for_model()), "success" if result.success else "error"
    return _messages.ToolMessage(text, tool_call_id=request.tool_call["id"], name=result.tool, status=status)
