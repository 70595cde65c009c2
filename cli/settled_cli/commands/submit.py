"""`settled submit`: request an effect by its contract's name."""

from typing import Any

import click

from settled.app import App
from settled.core.errors import ContractNotFoundError
from settled_cli.commands.op import wait_for
from settled_cli.invocation import Invocation, Leaf, Seconds, app_option, usage_errors
from settled_cli.opening import app_reference, load, load_user_app, open_app
from settled_cli.reading import read_json, read_source, read_time
from settled_cli.render import emit
from settled_cli.workers import live_workers


@click.command(cls=Leaf)
@click.argument("contract")
@app_option("Where the contract is declared. Not needed with --operation-id.")
@click.option("--args", "arguments", required=True, metavar="JSON|@FILE|-", help="The arguments as a JSON object.")
@click.option("--operation-id", metavar="ID", help="The business identity. Default: the contract derives it.")
@click.option("--wait", "wait_seconds", type=Seconds(), metavar="SECONDS", help="Then wait, as settled op wait does.")
@click.option("--priority", type=int, default=0, show_default=True, help="Higher goes first.")
@click.option("--delay", type=Seconds(), metavar="SECONDS", help="Dispatch no sooner than after this time.")
@click.option("--deadline", metavar="TIME", help="Dispatch not after this time, with its zone.")
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    contract: str,
    app_ref: str | None,
    arguments: str,
    operation_id: str | None,
    wait_seconds: float | None,
    **options: Any,
) -> None:
    """Request an effect. The request is durable when this returns; the same request again returns what is known of it."""
    given = read_json(read_source(arguments, "--args"), "--args")
    if not isinstance(given, dict):
        raise click.UsageError("--args is not a JSON object. Nothing was stored")
    if options["deadline"] is not None:
        options["deadline"] = read_time(options["deadline"], "--deadline")
    app = _app_that_knows(ctx.obj, contract, app_ref, operation_id)
    with usage_errors():
        operation = app.submit(contract, given, operation_id=operation_id, **options)
    if wait_seconds is not None:
        wait_for(ctx, app, operation.operation_id, wait_seconds)
        return
    facts = {"operation_id": operation.operation_id, "status": operation.status.value, "created": operation.created}
    emit(ctx.obj, operation.to_json() if ctx.obj.for_programs else facts)


def _app_that_knows(invocation: Invocation, contract: str, app_ref: str | None, operation_id: str | None) -> App:
    """Return the user's app, or one without contracts where a live worker lists the name. Raises ContractNotFoundError."""
    if app_reference(app_ref, load(invocation)) is not None or operation_id is None:
        app, _, _ = load_user_app(invocation, app_ref, "submit without --operation-id")
        app.contract(contract)
        return app
    app = open_app(invocation)
    known = {name for worker in live_workers(app) for name in worker.contracts}
    if contract not in known:
        raise ContractNotFoundError(contract, tuple(known))
    return app
