"""`settled op`: look at operations, wait for them, call them off. Works from rows alone; only `probe` needs the contracts."""

from typing import Any, Final

import click

from settled.core.limits import DEFAULTS
from settled.core.words import Outcome, Status
from settled_cli.asking import decides, who_and_why
from settled_cli.card import show_card
from settled_cli.explaining import explain_operation
from settled_cli.invocation import Invocation, Seconds, Verbs, app_option, only, usage_errors
from settled_cli.opening import load_user_app, open_app
from settled_cli.render import cell, emit, show_table, write
from settled_cli.summaries import LISTED, event_rows, shown, summary
from settled_cli.verdict import say

_WAIT_SECONDS: Final = 30.0
_EVENT: Final = ("sequence", "at", "type", "status", "attempt", "data")


@click.group(cls=Verbs)
def op() -> None:
    """Look at operations, wait for them, call them off."""


@op.command("list")
@click.option("--status", "statuses", multiple=True, **only([status.value for status in Status], "STATUS"))
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
    """Show one operation: a sentence, the evidence, all that is known, and one next command."""
    app = open_app(invocation)
    operation = app.get(operation_id)
    if invocation.for_programs:
        emit(invocation, operation.to_json())
    else:
        show_card(app, operation)


@op.command()
@click.argument("operation_id")
@click.pass_obj
def events(invocation: Invocation, operation_id: str) -> None:
    """Show the history of one operation in order."""
    app = open_app(invocation)
    emit(invocation, event_rows(app.events(operation_id), app.get(operation_id).mask), _EVENT)


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
@click.option("--expected-fingerprint", metavar="TEXT", help="The fingerprint of the request that you saw in settled op show.")
@click.pass_obj
def approve(invocation: Invocation, operation_id: str, actor: str | None, reason: str | None, expected_fingerprint: str | None) -> None:
    """Let an operation that awaits approval be dispatched: this request and no other."""
    decided(invocation, "approve", operation_id, actor, reason, expected_fingerprint=expected_fingerprint)


@op.command()
@decides
@click.pass_obj
def deny(invocation: Invocation, operation_id: str, actor: str | None, reason: str | None) -> None:
    """Cancel an operation that awaits approval."""
    decided(invocation, "deny", operation_id, actor, reason)


def decided(invocation: Invocation, verb: str, operation_id: str, actor: str | None, reason: str | None, **more: Any) -> None:
    """Carry out a decision that needs a name and a reason, and show the operation after it."""
    app = open_app(invocation)
    app.get(operation_id)  # before any question: nobody answers for an ID that does not exist
    said = who_and_why(actor, reason)
    with usage_errors():
        operation = getattr(app, verb)(operation_id, **said, **more)
    emit(invocation, operation.to_json() if invocation.for_programs else shown(operation))


@op.command()
@click.argument("operation_id")
@app_option("Where the contract with the probe is.")
@click.pass_obj
def probe(invocation: Invocation, operation_id: str, app_ref: str | None) -> None:
    """Ask the probe now what became of an operation. It only reads."""
    from settled_worker.terms import overrides_of  # slow to import, and the other verbs need no worker

    app, _, loaded = load_user_app(invocation, app_ref, "op probe")
    app.shell.overrides.update(overrides_of(loaded.settings))
    before = len(app.events(operation_id))
    operation = app.reconcile(operation_id)
    answers = event_rows(app.events(operation_id)[before:], operation.mask)
    if not answers:
        say(f"nothing was asked: the contract has no probe, or it is not for a probe to tell. See: settled op explain {operation_id}")
    if invocation.for_programs:
        emit(invocation, {**operation.to_json(), "answers": answers})
        return
    show_table(answers, _EVENT)
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
