"""OpenAI Agents SDK: the approval gate of a tool is its wait; a run that waits is a `RunState`.

Promise: no effect is done here, and no approval is believed: gate and body both ask the store.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from settled.core.errors import ConfigurationError
from settled.integrations.answers import ToolResult
from settled.integrations.host import Host
from settled.integrations.needs import need
from settled.integrations.tools import Tool

_FunctionTool = need("agents.tool", "openai-agents").FunctionTool
RunIdOf = Callable[[Any], str]


def run_id_of(context: Any) -> str:
    """Return `context["run_id"]`: the ID that the host gave to its run, which its state keeps."""
    run_id = context.get("run_id") if isinstance(context, Mapping) else None
    if not isinstance(run_id, str):
        raise ConfigurationError('the run has no ID. Nothing was sent. Start it with Runner.run(…, context={"run_id": …})')
    return run_id


def tools(host: Host, *, run_id: RunIdOf = run_id_of) -> list[Any]:
    """Return the host's tools for `Agent(tools=…)`. `run_id` finds the run's ID in the context, the same after a resume.

    A run that waits ends with `interruptions`. Keep `to_state().to_json()`, and later `look_again` at its `RunState.from_json`. A
    rejection tells the model that nothing was done, and stops nothing: never reject what is recorded.
    """
    return [_declared(host, tool, run_id) for tool in host.tools.values()]


async def look_again(host: Host, state: Any, *, run_id: str) -> bool:
    """Approve each interruption of the host's tools that waits no longer, as the store says; return whether all of them may go on.

    Then run the state, without `context=`, which would replace the one that it keeps. Interruptions of other tools are left alone.
    """
    waits = False
    for item in state.get_interruptions():
        if item.tool_name not in host.tools:
            continue
        result = await host.acall(item.tool_name, _parsed(item.arguments or ""), run_id=run_id, call_id=item.call_id)
        if result.waiting:
            waits = True
        else:
            state.approve(item)
    return not waits


def _declared(host: Host, tool: Tool, run_id: RunIdOf) -> Any:
    async def call(context: Any, arguments: Any, call_id: str, **options: Any) -> ToolResult:
        return await host.acall(tool.name, arguments, run_id=run_id(context.context), call_id=call_id, **options)

    async def waits(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return (await call(context, arguments, call_id)).waiting

    async def invoke(context: Any, text: str) -> str:
        return json.dumps((await call(context, _parsed(text), context.tool_call_id, wait=0)).for_model())

    return _FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.schema,
        on_invoke_tool=invoke,
        strict_json_schema=False,  # strict would rewrite the schema: what is optional here would be required there
        needs_approval=waits,
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text  # refused at the door, and told
