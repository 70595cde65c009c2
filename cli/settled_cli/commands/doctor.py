"""`settled doctor`: examine this host, the ledger and its settings; every finding says what to do."""

import click

from settled_cli.examination import examine
from settled_cli.invocation import Invocation, Leaf
from settled_cli.opening import is_there, ledger_file, load, missing, open_app
from settled_cli.render import emit


@click.command(cls=Leaf)
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Examine this host, the ledger and its settings. Exit 1 if something is wrong."""
    invocation: Invocation = ctx.obj
    path = ledger_file(invocation)
    if not is_there(path):
        raise missing(path)
    findings = examine(open_app(invocation), load(invocation))
    emit(invocation, [finding._asdict() for finding in findings], ("check", "verdict", "found", "what_to_do"))
    ctx.exit(1 if any(finding.verdict == "wrong" for finding in findings) else 0)
