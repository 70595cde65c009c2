"""Speak the protocol: list the tools and the resources, and hand each call to the desk.

The low-level server of the SDK, because names and schemas are the contracts' own: nothing is derived from Python signatures.
"""

import asyncio
import json
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from settled.core.errors import SettledError
from settled.core.limits import DEFAULTS
from settled.core.text import one_line
from settled.integrations.mcp.desk import OPERATION_URI, STATUS_URI, Desk, is_error, log
from settled.integrations.mcp.offered import Answer, Offer, offers_of

if TYPE_CHECKING:
    from settled.app import App

Context = ServerRequestContext[Any, Any]
_JSON: Final = "application/json"
_INSTRUCTIONS: Final = (
    "Recorded effects. submit_… asks for one business action; the same action asked for twice is one action, whatever became of the "
    "first answer. get_… and wait_… tell what is known of it. Follow next_action: 'wait' and 'ask_human' are no failures, and nobody "
    "then knows that the action failed. Do not ask for the same action in other words, with other amounts or under another ID."
)
_WRITES: Final = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True)
_READS: Final = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


def make_server(
    app: "App", *, only: Iterable[str] = (), open_arguments: bool = False, wait: float = DEFAULTS.tool_wait_seconds
) -> Server[Any]:
    """Return a server of the SDK that offers an App's contracts, or `only` the named ones. It opens the ledger at the first call.

    `wait` is how many seconds a submission waits for its end before it is answered. Raises ContractNotFoundError, ConfigurationError.
    """
    desk = Desk(app, offers_of(app, only=only, open_arguments=open_arguments), wait=wait)
    tools = [_tool(offer) for offer in desk.offers.values()]

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        offer = desk.offers.get(params.name)
        if offer is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {one_line(params.name, DEFAULTS.tool_name_max)!r} here")
        return _result(await desk.call(offer, params.arguments or {}, ctx.session.report_progress))

    async def list_resources(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[_STATUS])

    async def list_templates(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[_OPERATION])

    async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        text = await _read(desk, str(params.uri))
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, mime_type=_JSON, text=text)])

    return Server(
        "settled",
        version=version("settled"),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        get_tool_input_schema=lambda name: desk.offers[name].schema if name in desk.offers else None,
    )


_STATUS: Final = types.Resource(
    uri=STATUS_URI,
    name="status",
    description="How many operations of the contracts offered here are in which status.",
    mime_type=_JSON,
)
_OPERATION: Final = types.ResourceTemplate(
    uri_template=OPERATION_URI + "{operation_id}",
    name="operation",
    description="What is known of one operation, as its get tool tells it. The ID is percent-encoded.",
    mime_type=_JSON,
)


def _tool(offer: Offer) -> types.Tool:
    return types.Tool(
        name=offer.name,
        description=offer.description,
        input_schema=dict(offer.schema),
        output_schema=Answer.model_json_schema(),
        annotations=_WRITES if offer.verb == "submit" else _READS,
    )


def _result(answer: Answer) -> types.CallToolResult:
    """Return an answer as structured content, and the same as text for clients that read no other."""
    told = answer.model_dump(mode="json", exclude_unset=True)
    text = types.TextContent(type="text", text=json.dumps(told, ensure_ascii=False))
    return types.CallToolResult(content=[text], structured_content=told, is_error=is_error(answer))


async def _read(desk: Desk, uri: str) -> str:
    try:
        if uri == STATUS_URI:
            return await asyncio.to_thread(desk.status)
        found = await asyncio.to_thread(desk.operation, uri) if uri.startswith(OPERATION_URI) else None
    except SettledError as error:
        log.error("mcp.read_failed", exc_info=error)
        raise MCPError(types.INTERNAL_ERROR, "the record cannot be read now, so nothing is known") from None
    if found is None:
        raise MCPError(types.INVALID_PARAMS, f"there is no resource {one_line(uri, DEFAULTS.error_text_max)!r} here")
    return found
