"""What a server offers: for each contract one tool that submits and two that read, as plain data without the protocol.

Promise: these three verbs are all there are. A verb of an operator cannot be added by a contract's name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from settled.contract import EffectContract
from settled.core.errors import ConfigurationError
from settled.core.limits import DEFAULTS
from settled.integrations.answers import ToolResult
from settled.integrations.tools import Tool, effect_tool

if TYPE_CHECKING:
    from settled.app import App

Verb = Literal["submit", "get", "wait"]
NOT_FOUND: Final = "not_found"


class Answer(BaseModel):
    """What every tool answers with."""

    model_config = ConfigDict(extra="forbid")

    effect_status: Annotated[
        str,
        Field(
            description="prepared, dispatched, outcome_unknown, quarantined, confirmed, rejected, cancelled: what the record says; "
            "conflict, invalid_arguments, unavailable, not_found: why it says nothing more"
        ),
    ]
    next_action: Annotated[Literal["use_result", "wait", "do_not_retry", "ask_human"], Field(description="The one thing to do next.")]
    message: Annotated[str, Field(description="The same in words.")]
    operation_id: Annotated[str | None, Field(description="The name of the business action: what get and wait take.")] = None
    created: Annotated[bool, Field(description="Whether this very call recorded the action; false: it was recorded before.")] = False
    output: Annotated[Any, Field(description="The result of a confirmed effect.")] = None
    refusal: Annotated[str | None, Field(description="The destination's words, of an effect that surely did not happen.")] = None


class Known(BaseModel):
    """The arguments of a tool that reads."""

    model_config = ConfigDict(extra="forbid", strict=True)

    operation_id: Annotated[str, Field(min_length=1, max_length=DEFAULTS.operation_id_max, description="As submit told it.")]


class Waited(Known):
    """The arguments of a tool that waits."""

    timeout_seconds: Annotated[
        float,
        Field(ge=0, le=DEFAULTS.mcp_wait_seconds_max, allow_inf_nan=False, description="When to stop waiting. Nothing else stops then."),
    ] = DEFAULTS.mcp_wait_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One tool as a client sees it. `tool` is the contract's own."""

    name: str
    verb: Verb
    description: str
    schema: Mapping[str, Any]
    tool: Tool


def offers_of(app: "App", *, only: Iterable[str] = (), open_arguments: bool = False) -> dict[str, Offer]:
    """Return the tools by name, for each contract or `only` the named ones. Raises ContractNotFoundError, ConfigurationError."""
    names = tuple(dict.fromkeys(only)) or tuple(app.contracts)
    if not names:
        raise ConfigurationError("the app declares no contract, so that there is nothing to offer. Nothing was started. Name another app")
    offers: dict[str, Offer] = {}
    for contract in map(app.contract, names):
        for offer in _offers_of_one(app, contract, open_arguments):
            if offer.name in offers:
                other = offers[offer.name].tool.contract.name
                raise ConfigurationError(
                    f"the contracts {other!r} and {contract.name!r} would both be the tool {offer.name!r}. Nothing was started. Rename one"
                )
            offers[offer.name] = offer
    return offers


def _offers_of_one(app: "App", contract: EffectContract, open_arguments: bool) -> list[Offer]:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", contract.name)  # what every provider of models takes
    tool = effect_tool(
        contract,
        app=app,
        name=f"submit_{plain}",
        key="argument" if contract.operation_id_function is None else "contract",
        open_arguments=open_arguments,
    )
    reading = f"Tell what is known of one {contract.name} operation that was submitted before. It only reads."
    waiting = (
        f"Wait until one {contract.name} operation is settled, or timeout_seconds are over, and tell what is known of it then. It only "
        "reads: an answer of 'wait' is no failure, and ending the wait ends nothing else."
    )
    return [
        Offer(name=tool.name, verb="submit", description=tool.description, schema=tool.schema, tool=tool),
        Offer(name=f"get_{plain}", verb="get", description=reading, schema=Known.model_json_schema(), tool=tool),
        Offer(name=f"wait_{plain}", verb="wait", description=waiting, schema=Waited.model_json_schema(), tool=tool),
    ]


def answer_of(result: ToolResult, *, created: bool | None = None) -> Answer:
    """Return what the client is told of a result. `created` is for an answer to a submission."""
    return Answer(**result.for_model()) if created is None else Answer(**result.for_model(), created=created)


def unknown_operation(operation_id: str) -> Answer:
    """Return what is told of an operation that is not there, or is another tool's: nothing of what that may be."""
    return Answer(
        effect_status=NOT_FOUND,
        next_action="do_not_retry",
        message="This tool has no operation of that ID, so nothing was asked for under it here. Use the ID that submit told.",
        operation_id=operation_id,
    )
