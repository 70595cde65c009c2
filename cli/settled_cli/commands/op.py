"""`settled op`: look at operations, wait for them, call them off. Works from rows alone; only `probe` needs the contracts."""

from collections.abc import Mapping
from typing import Any

import click

from settled.core.limits import DEFAULTS
from settled.core.words import Outcome, Status
from settled.operation import Operation
from settled_cli.asking import decides, who_and_why
from settled_cli.explaining import explain_operation
from settled_cli.invocation import Invocation, Seconds, Verbs, usage_errors
from settled_cli.opening import load_user_app, open_app
from settled_cli.render import cell, emit, show_table, write
from settled_cli.summaries import LISTED, event_rows, shown, summary
from settled_cli.verdict import say

_WAIT_SECONDS = 30.0


@click.group(cls=Verbs)
def op() -> None:
    """Look at operations, wait for them, call them off."""


@op.command("list")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice([status.value for status in Status]), help="Only these; may be repeated."
)
@click.option("--limit", type=click.IntRange(1, DEFAULTS.list_max), default=DEFAULTS.list_default, show_default=True)
@click.pass_obj
def list_operations(invocation: Invocation, statuses: tuple[str, ...], limit: int) -> None:
    """List operations, the newest update first."""
    app = open_app(invocation)
    found = [one for status in statuses or (None,) for one in app.list(status=status, limit=limit)]
    found.sort(key=lambda one: one.updated_at, reverse=True)
    emit(invocation, [summary(one) for one in found[:limit]], LISTED)


@op.command()
@click.argument("operation_id")
@click.pass_obj
def show(invocation: Invocation, operation_id: str) -> None:
    """Show all that is known of one operation."""
    operation = open_app(invocation).get(operation_id)
    if invocation.for_programs:
        emit(invocation, operation.to_json())
        return
    emit(invocation, shown(operation))
    _attempts(operation)


@op.command()
@click.argument("operation_id")
@click.pass_obj
def events(invocation: Invocation, operation_id: str) -> None:
    """Show the history of one operation in order."""
    emit(invocation, event_rows(open_app(invocation).events(operation_id)), ("sequence", "at", "type", "status", "attempt", "data"))


@op.command()
@click.argument("operation_id")
@click.option("--timeout", type=Seconds(), default=_WAIT_SECONDS, show_default=True, help="Seconds to wait.")
@click.pass_context
def wait(ctx: click.Context, operation_id: str, timeout: float) -> None:
    """Wait until an operation is settled. Exit 0 only if it is confirmed."""
    wait_for(ctx, open_app(ctx.obj), operation_id, timeout)


def wait_for(ctx: click.Context, app: Any, operation_id: str, timeout: float) -> None:
    """Wait, print the operation, and end with the code that its outcome has."""
    operation = app.wait(operation_id, timeout=timeout)
    emit(ctx.obj, operation.to_json() if ctx.obj.for_programs else shown(operation))
    if not operation.settled:
        say(operation.message)
    ctx.exit(0 if operation.outcome is Outcome.CONFIRMED else 1)


@op.command()
@decides
@click.pass_obj
def cancel(invocation: Invocation, operation_id: str, actor: str | None, reason: str | None) -> None:
    """Call off what was never sent."""
    decided(invocation, "cancel", operation_id, actor, reason)


@op.command()
@decides
@click.pass_obj
def stop(invocation: Invocation, operation_id: str, actor: str | None, reason: str | None) -> None:
    """Stop a handler that runs. Its outcome is then unknown, and nothing is dispatched again without a person."""
    decided(invocation, "stop", operation_id, actor, reason)


@op.command()
@decides
@click.pass_obj
def approve(invocation: Invocation, operation_id: str, actor: str | None, reason: str | None) -> None:
    """Let an operation that awaits approval be dispatched."""
    decided(invocation, "approve", operation_id, actor, reason)


@op.command()
@decides
@click.pass_obj
def deny(invocation: Invocation, operation_id: str, actor: str | None, reason: str | None) -> None:
    """Cancel an operation that awaits approval."""
    decided(invocation, "deny", operation_id, actor, reason)


def decided(invocation: Invocation, verb: str, operation_id: str, actor: str | None, reason: str | None) -> None:
    """Carry out a decision that needs a name and a reason, and show the operation after it."""
    app = open_app(invocation)
    app.get(operation_id)  # before any question: nobody answers for an ID that does not exist
    said = who_and_why(actor, reason)
    with usage_errors():
        operation = getattr(app, verb)(operation_id, **said)
    emit(invocation, operation.to_json() if invocation.for_programs else shown(operation))


@op.command()
@click.argument("operation_id")
@click.option("--app", "app_ref", metavar="MODULE:APP", help="Where the contract with the probe is.")
@click.pass_obj
def probe(invocation: Invocation, operation_id: str, app_ref: str | None) -> None:
    """Ask the probe now what became of an operation. It only reads."""
    from settled_worker.terms import overrides_of  # slow to import, and the other verbs need no worker

    app, _, loaded = load_user_app(invocation, app_ref, "op probe")
    app.shell.overrides.update(overrides_of(loaded.settings))
    before = len(app.events(operation_id))
    operation = app.reconcile(operation_id)
    answers = event_rows(app.events(operation_id)[before:])
    if invocation.for_programs:
        emit(invocation, {**operation.to_json(), "answers": answers})
        return
    show_table(answers, ("sequence", "at", "type", "status", "attempt", "data"))
    emit(invocation, shown(operation))


@op.command()
@click.argument("operation_id")
@click.pass_obj
def explain(invocation: Invocation, operation_id: str) -> None:
    """Say in words why an operation is where it is and what would move it. Writes nothing."""
    sentences = explain_operation(open_app(invocation), operation_id)
    if invocation.for_programs:
        emit(invocation, {"operation_id": operation_id, "explanation": list(sentences)})
    else:
        write("".join(f"{cell(sentence)}\n" for sentence in sentences))


def _records(operation: Operation) -> list[Mapping[str, Any]]:
    """Return the attempts as people see them: once an operation is settled, what stayed open is no alarm. Programs get all."""
    if not operation.settled:
        return list(operation.attempt_records)
    alarms = {"fence": "may_still_run", "closed_by": "open"}
    return [{**one, **{name: None for name, word in alarms.items() if one[name] == word}} for one in operation.attempt_records]


def _attempts(operation: Operation) -> None:
    columns = ("number", "dispatched_at", "ended_at", "end", "outcome", "fence", "closed_by", "error")
    if operation.attempt_records:
        write("\nattempts\n")
        show_table(_records(operation), columns)
    if operation.evidence:
        write("\nevidence\n")
        show_table(operation.evidence, ("sequence", "at", "source", "type", "attempt", "verdict", "facts"))
