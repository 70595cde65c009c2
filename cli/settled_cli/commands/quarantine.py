"""`settled quarantine`: what no evidence settles, a person decides, on the record.

Promise: nothing is changed before every fact is there: who, why, by which evidence, and which version the person saw.
"""

from typing import Any

import click

from settled.app import App
from settled.core.limits import DEFAULTS
from settled.core.words import Status
from settled.operation import Operation
from settled_cli.asking import Decider, ask, at_terminal, decides, required, who_and_why
from settled_cli.invocation import Invocation, Verbs, usage_errors
from settled_cli.opening import open_app
from settled_cli.reading import read_json
from settled_cli.render import emit
from settled_cli.summaries import LISTED, shown, summary
from settled_cli.verdict import say

_ASSERTS = "You assert that no attempt of this operation took effect, and that none still can."


@click.group(cls=Verbs)
def quarantine() -> None:
    """Decide what no evidence settles. First look: settled op show ID, settled op explain ID, settled op probe ID."""


@quarantine.command("list")
@click.option("--limit", type=click.IntRange(1, DEFAULTS.list_max), default=DEFAULTS.list_default, show_default=True)
@click.pass_obj
def list_quarantined(invocation: Invocation, limit: int) -> None:
    """List what waits for a person, the newest update first."""
    found = open_app(invocation).list(status=Status.QUARANTINED, limit=limit)
    emit(invocation, [{**summary(one), "version": one.version} for one in found], (*LISTED, "version"))


def facts(function: Decider) -> Decider:
    """Add what every decision has, and what one about an unknown outcome needs beside it."""
    function = click.option("--expected-version", type=int, metavar="N", help="The version that you saw in settled op show.")(function)
    kept = "Where your evidence is kept: a ticket, a page, a log."
    return decides(click.option("--evidence-reference", metavar="TEXT", help=kept)(function))


@quarantine.command()
@facts
@click.option("--output-json", metavar="JSON", help="The result that later requests get.")
@click.option("--provider-operation-id", metavar="ID", help="What the destination calls the effect.")
@click.pass_obj
def confirm(invocation: Invocation, /, operation_id: str, output_json: str | None, provider_operation_id: str | None, **said: Any) -> None:
    """Confirm: you found that the effect happened, at least once."""
    app, operation = _seen(invocation, operation_id, said["expected_version"])
    more = {} if output_json is None else {"output": read_json(output_json, "--output-json")}
    decision = _decision(said)
    with usage_errors():
        operation = app.confirm(operation_id, provider_operation_id=provider_operation_id, **decision, **more)
    _show(invocation, operation, "resolved")


@quarantine.command()
@facts
@click.option("--assert-nothing-can-arrive", is_flag=True, help="Assert, on the record, that nothing already sent can still arrive.")
@click.pass_obj
def reject(invocation: Invocation, /, operation_id: str, assert_nothing_can_arrive: bool, **said: Any) -> None:
    """Reject: you assert that no attempt took effect or still can."""
    app, _ = _seen(invocation, operation_id, said["expected_version"])
    say(_ASSERTS)
    decision = _decision(said)
    with usage_errors():
        operation = app.reject(operation_id, assert_nothing_can_arrive=assert_nothing_can_arrive, **decision)
    _show(invocation, operation, "resolved")


@quarantine.command("authorize-retry")
@facts
@click.option("--confirm-operation-id", metavar="ID", help="The ID once more, where nobody can be asked for it.")
@click.option("--assert-nothing-can-arrive", is_flag=True, help="Assert, on the record, that nothing already sent can still arrive.")
@click.option("--accept-second-effect", is_flag=True, help="Accept a second effect although evidence says that there is one already.")
@click.pass_obj
def authorize_retry(
    invocation: Invocation,
    /,
    operation_id: str,
    confirm_operation_id: str | None,
    assert_nothing_can_arrive: bool,
    accept_second_effect: bool,
    **said: Any,
) -> None:
    """Let one more attempt be dispatched: you assert that no attempt took effect or still can."""
    app, _ = _seen(invocation, operation_id, said["expected_version"])
    say(f"{_ASSERTS} Exactly one more dispatch follows.")
    if at_terminal():
        say(f"looking first is safe: settled op probe {operation_id}")
    decision = _decision(said)
    _check_typed(operation_id, confirm_operation_id)
    with usage_errors():
        operation = app.authorize_retry(
            operation_id,
            assert_nothing_can_arrive=assert_nothing_can_arrive,
            accept_second_effect=accept_second_effect,
            **decision,
        )
    _show(invocation, operation, "retry_authorized")


def _seen(invocation: Invocation, operation_id: str, expected_version: int | None) -> tuple[App, Operation]:
    """Return the operation as it is. Raises UsageError with the current version where the person names none."""
    app = open_app(invocation)
    operation = app.get(operation_id)
    if expected_version is None:
        raise click.UsageError(
            f"--expected-version is missing: {operation_id} is {operation.status} at version {operation.version}. Nothing was changed"
        )
    return app, operation


def _decision(said: dict[str, Any]) -> dict[str, Any]:
    """Return the four facts, asked for where somebody can be asked."""
    return {
        **who_and_why(said["actor"], said["reason"]),
        "evidence_reference": required(said["evidence_reference"], "--evidence-reference", "Where is the evidence kept?"),
        "expected_version": said["expected_version"],
    }


def _check_typed(operation_id: str, confirm_operation_id: str | None) -> None:
    """Raise UsageError unless the ID was typed once more."""
    if confirm_operation_id is None and not at_terminal():
        raise click.UsageError(f"--confirm-operation-id is missing: repeat the ID {operation_id}. Nothing was changed")
    typed = ask(f"To authorize one more dispatch, type the ID {operation_id}:") if confirm_operation_id is None else confirm_operation_id
    if typed != operation_id:
        raise click.UsageError(f"the ID typed once more is {typed!r}, not {operation_id!r}. Nothing was changed")


def _show(invocation: Invocation, operation: Operation, verdict: str) -> None:
    answer = operation.to_json() if invocation.for_programs else shown(operation)
    emit(invocation, {**answer, verdict: True})
