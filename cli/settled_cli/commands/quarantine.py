"""`settled quarantine`: what no evidence settles, a person decides, on the record.

Promise: nothing is changed before every fact is there: who, why, by which evidence, and which version the person saw.
"""

from typing import Any

import click

from settled.core.limits import DEFAULTS
from settled.operation import Operation
from settled_cli.asking import at_terminal
from settled_cli.commands.attention import ack, assign, snooze
from settled_cli.commands.bulk import chosen, confirm_all, reject_all, selects
from settled_cli.commands.proposals import approve, decline, propose
from settled_cli.deciding import ASSERTS, check_typed, decision, facts, seen
from settled_cli.invocation import Invocation, Verbs, usage_errors
from settled_cli.opening import open_app
from settled_cli.reading import read_json
from settled_cli.render import emit
from settled_cli.summaries import PENDING, WAITING, shown, waiting_row
from settled_cli.verdict import say


@click.group(cls=Verbs)
def quarantine() -> None:
    """Decide what no evidence settles. First look: settled op show ID, settled op explain ID, settled op probe ID."""


@quarantine.command("list")
@click.option("--limit", type=click.IntRange(1, DEFAULTS.list_max), default=DEFAULTS.list_default, show_default=True)
@click.option("--pending", is_flag=True, help="Only what one person has proposed and a second one may approve.")
@selects
@click.pass_obj
def list_quarantined(invocation: Invocation, /, limit: int, pending: bool, **selection: Any) -> None:
    """List what waits for a person. The highest risk comes first, then the longest wait."""
    if pending and any(value is not None for value in selection.values()):
        raise click.UsageError("--pending lists every proposal: --contract, --risk, --reason-code and --older-than do not go with it")
    app = open_app(invocation)
    if pending:
        emit(invocation, [waiting_row(one) for one in app.pending_proposals()[:limit]], PENDING)
        return
    found = app.waiting_for_people(limit=limit, **chosen(selection))
    emit(invocation, [waiting_row(one) for one in found], WAITING)


for each in (ack, assign, snooze, confirm_all, reject_all, propose, approve, decline):
    quarantine.add_command(each)


@quarantine.command()
@facts
@click.option("--output-json", metavar="JSON", help="The result that later requests get.")
@click.option("--provider-operation-id", metavar="ID", help="What the destination calls the effect.")
@click.pass_obj
def confirm(invocation: Invocation, /, operation_id: str, output_json: str | None, provider_operation_id: str | None, **said: Any) -> None:
    """Confirm: the effect happened, at least once. You found that."""
    app, operation = seen(invocation, operation_id, said["expected_version"])
    more = {} if output_json is None else {"output": read_json(output_json, "--output-json")}
    given = decision(said)
    with usage_errors():
        operation = app.confirm(operation_id, provider_operation_id=provider_operation_id, **given, **more)
    _show(invocation, operation, "resolved")


@quarantine.command()
@facts
@click.option("--assert-nothing-can-arrive", is_flag=True, help="Assert, on the record, that nothing already sent can still arrive.")
@click.pass_obj
def reject(invocation: Invocation, /, operation_id: str, assert_nothing_can_arrive: bool, **said: Any) -> None:
    """Reject: no attempt took effect or still can. You assert that."""
    app, _ = seen(invocation, operation_id, said["expected_version"])
    say(ASSERTS)
    given = decision(said)
    with usage_errors():
        operation = app.reject(operation_id, assert_nothing_can_arrive=assert_nothing_can_arrive, **given)
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
    """Let one more attempt be dispatched. You assert that none took effect, and that none still can."""
    app, _ = seen(invocation, operation_id, said["expected_version"])
    say(f"{ASSERTS} Exactly one more dispatch follows.")
    if at_terminal():
        say(f"looking first is safe: settled op probe {operation_id}")
    given = decision(said)
    check_typed(operation_id, confirm_operation_id)
    with usage_errors():
        operation = app.authorize_retry(
            operation_id,
            assert_nothing_can_arrive=assert_nothing_can_arrive,
            accept_second_effect=accept_second_effect,
            **given,
        )
    _show(invocation, operation, "retry_authorized")


def _show(invocation: Invocation, operation: Operation, verdict: str) -> None:
    answer = operation.to_json() if invocation.for_programs else shown(operation)
    emit(invocation, {**answer, verdict: True})
