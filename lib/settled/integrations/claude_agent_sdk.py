"""Claude Agent SDK: effects as tools of an in-process MCP server, and a hook that blocks them while the ledger is broken.

Promise: no effect is done here. The session may be lost: the key comes from the business, for no call ID reaches a tool.
"""

import asyncio
import json
from typing import Any, Final

from settled.core.errors import ConfigurationError, SettledError
from settled.integrations.host import Host
from settled.integrations.needs import need
from settled.integrations.tools import Tool
from settled.logs import get_log

_sdk = need("claude_agent_sdk", "claude-agent-sdk")
SERVER: Final = "settled"
HOOK_SECONDS: Final = 30.0  # the store itself gives up earlier; a hook that does not answer blocks
BLOCKED: Final = "The record of actions cannot be used now, and nothing was sent. Do not act without it: tell the person you work for."
log: Final = get_log("settled.agents")


def server(host: Host, *, run_id: str, name: str = SERVER) -> Any:
    """Return the host's tools for `ClaudeAgentOptions(mcp_servers={name: …})`; a model sees them as `mcp__name__tool`.

    `run_id` is the host's own name of the run, the same when its session is resumed. A call that waits is told so: call again later.
    Raises ConfigurationError for a tool whose key is made of the call ID, which no tool is given here.
    """
    return _sdk.create_sdk_mcp_server(name=name, tools=[_declared(host, tool, run_id) for tool in host.tools.values()])


def guard(host: Host, *, name: str = SERVER) -> Any:
    """Return a matcher for `ClaudeAgentOptions(hooks={"PreToolUse": […]})`: no effect is asked for while the ledger cannot be read.

    `on_failure="block"`: a hook that fails or hangs blocks as well. Add the matcher of other tools that must not act without a record.
    """
    return _sdk.HookMatcher(matcher=f"mcp__{name}__.*", hooks=[_look(host)], timeout=HOOK_SECONDS, on_failure="block")


def _look(host: Host) -> Any:
    async def look(hook_input: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        try:
            await asyncio.to_thread(host.check)
        except SettledError as error:
            log.warning("agent.blocked", tool=str(hook_input.get("tool_name")), error=str(error))
            denied = {"permissionDecision": "deny", "permissionDecisionReason": BLOCKED}
            return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **denied}}
        return {}

    return look


def _declared(host: Host, tool: Tool, run_id: str) -> Any:
    if tool.key == "call":
        raise ConfigurationError(f"tool {tool.name!r} makes its key of the call ID, which is not given here. Derive it from the arguments")

    async def call(arguments: dict[str, Any]) -> dict[str, Any]:
        result = await host.acall(tool.name, arguments, run_id=run_id)
        failed = not (result.success or result.waiting)
        return {"content": [{"type": "text", "text": json.dumps(result.for_model())}], "is_error": failed}

    hints = _sdk.ToolAnnotations(readOnlyHint=False, destructiveHint=True, idempotentHint=True, openWorldHint=True)
    return _sdk.SdkMcpTool(name=tool.name, description=tool.description, input_schema=tool.schema, handler=call, annotations=hints)
