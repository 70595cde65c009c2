"""Claude Agent SDK: the tool of a session refunds, its process is killed, and the next one goes on; no model key is needed.

    pip install 'settled[claude-agent-sdk]' && python examples/agents/claude_agent_sdk_refund.py

A client of the in-process MCP server stands for the session: it calls the tool as the model would.
"""

import asyncio
import json
import sys
from typing import Any

import scene
import shop
from mcp import Client
from mcp.types import TextContent

from settled.integrations.claude_agent_sdk import SERVER, guard, server

# In an application: ClaudeAgentOptions(mcp_servers={SERVER: tools}, hooks={"PreToolUse": [blocks]}, allowed_tools=["mcp__settled__refund"])
tools, blocks = server(shop.host, run_id="run-1"), guard(shop.host)


async def run() -> Any:
    call_id, arguments = scene.asked()
    decision = await blocks.hooks[0]({"tool_name": f"mcp__{SERVER}__refund", "tool_input": arguments}, call_id, {"signal": None})
    if decision:
        raise SystemExit(f"the hook blocked: {decision}")
    async with Client(tools["instance"]) as session:
        answer = (await session.call_tool("refund", arguments)).content[0]
        assert isinstance(answer, TextContent)
        told = json.loads(answer.text)
    if told["next_action"] == "wait":
        scene.paused("the session's transcript holds the answer 'wait'")
    return told


if __name__ == "__main__":
    sys.exit(scene.main(__file__, lambda: asyncio.run(run())))
