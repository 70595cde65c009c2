"""`settled worker`: run the service."""

import click

from settled.core.text import make_redactor
from settled.logs import configure_logs
from settled_cli.invocation import Invocation, Verbs
from settled_cli.opening import load_user_app
from settled_cli.verdict import say
from settled_worker.main import run_worker


@click.group(cls=Verbs)
def worker() -> None:
    """Run the worker."""


@worker.command()
@click.option("--app", "app_ref", metavar="MODULE:APP", help="Your contracts and handlers. Default: SETTLED_APP, or app in settled.toml.")
@click.option("--once", is_flag=True, help="Handle what is due, then end.")
@click.option("--paused", is_flag=True, help="Dispatch nothing: recover and probe only.")
@click.pass_context
def run(ctx: click.Context, app_ref: str | None, once: bool, paused: bool) -> None:
    """Dispatch, recover and reconcile until asked to end."""
    invocation: Invocation = ctx.obj
    app, reference, loaded = load_user_app(invocation, app_ref, "worker run")
    logs = loaded.settings.logs
    configure_logs(logs.format, logs.level, redact=make_redactor(loaded.settings.redactions))
    say(f"the ledger is {app.ledger.path}")
    ctx.exit(run_worker(app, loaded=loaded, app_ref=reference, once=once, paused=paused))
