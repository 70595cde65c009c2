"""`settled quarantine ack|assign|snooze`: stop the reminders, on the record. Nothing is decided by any of them."""

from datetime import datetime
from typing import Any

import click

from settled.operation import Operation
from settled_cli.asking import Decider, required
from settled_cli.invocation import Invocation, Leaf, usage_errors
from settled_cli.opening import open_app
from settled_cli.reading import read_time
from settled_cli.render import emit
from settled_cli.summaries import shown


def attends(function: Decider) -> Decider:
    """Add the operation, who speaks, and the reason, which is optional: at night it must be quick."""
    for option in (
        click.option("--reason", metavar="TEXT", help="Why, if there is more to say."),
        click.option("--actor", metavar="NAME", help="Who says so."),
        click.argument("operation_id"),
    ):
        function = option(function)
    return function


@click.command(cls=Leaf)
@attends
@click.pass_obj
def ack(invocation: Invocation, /, operation_id: str, **said: Any) -> None:
    """Say that you look at it. Ladder and reminders stop; nothing is decided."""
    actor = required(said["actor"], "--actor", "Who looks at it?")
    with usage_errors():
        operation = open_app(invocation).acknowledge(operation_id, actor=actor, reason=said["reason"])
    _show(invocation, operation, {"acknowledged": True})


@click.command(cls=Leaf)
@attends
@click.option("--to", "assignee", metavar="NAME", required=True, help="Who looks at it.")
@click.pass_obj
def assign(invocation: Invocation, /, operation_id: str, assignee: str, **said: Any) -> None:
    """Say who looks at it. Ladder and reminders stop; nothing is decided."""
    actor = required(said["actor"], "--actor", "Who assigns it?")
    with usage_errors():
        operation = open_app(invocation).assign(operation_id, assignee, actor=actor, reason=said["reason"])
    _show(invocation, operation, {"assigned_to": assignee})


@click.command(cls=Leaf)
@attends
@click.argument("until")
@click.pass_obj
def snooze(invocation: Invocation, /, operation_id: str, until: str, **said: Any) -> None:
    """Stop ladder and reminders for a while. UNTIL is a time with its zone, like 2026-11-30T09:40:00Z."""
    moment: datetime = read_time(until, "UNTIL")
    actor = required(said["actor"], "--actor", "Who wants to be told later?")
    with usage_errors():
        operation = open_app(invocation).snooze(operation_id, moment, actor=actor, reason=said["reason"])
    _show(invocation, operation, {"snoozed_until": moment.isoformat()})


def _show(invocation: Invocation, operation: Operation, said: dict[str, Any]) -> None:
    answer = operation.to_json() if invocation.for_programs else shown(operation)
    emit(invocation, {**answer, **said})
