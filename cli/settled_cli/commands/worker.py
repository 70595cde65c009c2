"""`settled worker`: run the service."""

import click

from settled.config import Settings
from settled.core.text import make_redactor
from settled.logs import configure_logs
from settled_cli.invocation import Invocation, Verbs, app_option
from settled_cli.opening import load, load_user_app
from settled_cli.verdict import say
from settled_worker.main import ready_for_signals, run_worker


@click.group(cls=Verbs)
def worker() -> None:
    """Run the worker."""


@worker.command()
@app_option("Your contracts and handlers. Default: SETTLED_APP, or app in settled.toml.")
@click.option("--once", is_flag=True, help="Handle what is due, then end.")
@click.option("--paused", is_flag=True, help="Dispatch nothing: recover and probe only.")
@click.pass_context
def run(ctx: click.Context, app_ref: str | None, once: bool, paused: bool) -> None:
    """Dispatch, recover and reconcile until asked to end."""
    invocation: Invocation = ctx.obj

    def read_settings() -> Settings:
        settings = load(invocation).settings
        _configure(settings)
        return settings

    with ready_for_signals():
        app, reference, loaded = load_user_app(invocation, app_ref, "worker run")
        _configure(loaded.settings)
        say(f"the ledger is {app.ledger.path}")
        code = run_worker(app, loaded=loaded, app_ref=reference, once=once, paused=paused, read_settings=read_settings)
    ctx.exit(code)


def _configure(settings: Settings) -> None:
    configure_logs(settings.logs.format, settings.logs.level, redact=make_redactor(settings.redactions))
