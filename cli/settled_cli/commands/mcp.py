"""`settled mcp`: offer the contracts of an app to agents over the Model Context Protocol."""

import os
import sys

import click

from settled.core.limits import DEFAULTS
from settled.core.text import make_redactor
from settled.logs import configure_logs
from settled_cli.invocation import Invocation, Leaf, Seconds, app_option
from settled_cli.opening import load, load_user_app
from settled_cli.verdict import say


@click.command(cls=Leaf)
@app_option("Where the contracts are. Default: SETTLED_APP, or app in settled.toml.")
@click.option("--contract", "contracts", multiple=True, metavar="NAME", help="Offer this contract only; may be given several times.")
@click.option("--http", metavar="[HOST:]PORT", help="Serve HTTP on a loopback address instead of standard input and output.")
@click.option("--token-file", metavar="FILE", help="What a client over HTTP must know. Default: SETTLED_MCP_TOKEN, or a credential.")
@click.option("--wait", type=Seconds(), default=DEFAULTS.tool_wait_seconds, show_default=True, help="How long a submission waits.")
@click.option("--open-arguments", is_flag=True, help="Offer contracts without arguments_type, too: nothing but JSON is checked then.")
@click.pass_context
def mcp(
    ctx: click.Context,
    app_ref: str | None,
    contracts: tuple[str, ...],
    http: str | None,
    token_file: str | None,
    wait: float,
    open_arguments: bool,
) -> None:
    """Offer each contract as tools that submit, get and wait, to one client that starts this, or over HTTP.

    It submits and reads; it never dispatches: a worker does. No tool confirms, rejects, approves, cancels or stops anything.
    """
    from settled.integrations import mcp as serving  # here: it needs an extra, and the help text needs none

    invocation: Invocation = ctx.obj
    address = None
    if http is not None:
        try:
            address = serving.parse_address(http)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param_hint="--http") from None
    elif token_file is not None:
        raise click.UsageError("--token-file is for --http; on standard input and output there is no token. Nothing was started")
    settings = load(invocation).settings
    # Standard output is the protocol's.
    configure_logs(settings.logs.format, settings.logs.level, sys.stderr, redact=make_redactor(settings.redactions))
    app, _, _ = load_user_app(invocation, app_ref, "mcp")
    server = serving.make_server(app, only=contracts, open_arguments=open_arguments, wait=wait)
    app.engine()  # a ledger that cannot serve is said now, not at the first call
    if address is not None:
        serving.serve_http(server, address, serving.find_token(token_file, os.environ), ready=lambda url: say(f"MCP at {url}"))
        return
    if sys.stdin is not None and sys.stdin.isatty():
        say("this speaks MCP on standard input and output, and is meant to be started by a client. Ctrl-D ends it")
    serving.serve_stdio(server)
