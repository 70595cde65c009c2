"""`settled sweep`: run a sweep once, or see what sweeps did."""

import click

from settled.config.settings import SWEEP_SECONDS
from settled.core.limits import DEFAULTS
from settled.store import sweep_runs
from settled.store.sweep_runs import SweepRun
from settled_cli.invocation import Invocation, Verbs, app_option
from settled_cli.opening import load, load_user_app, open_app
from settled_cli.render import emit, utc
from settled_cli.schedules import schedules
from settled_cli.sweeping import run_sweep
from settled_cli.workers import live_workers
from settled_worker.terms import overrides_of

_NEED_CONTRACTS = ("leases", "reconcile")
_COLUMNS = ("sweep", "started", "ended", "examined", "moved", "errors", "note")


@click.group(cls=Verbs)
def sweep() -> None:
    """Run a sweep once, or see what sweeps did."""


@sweep.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=click.Choice(list(SWEEP_SECONDS)))
@app_option("Your contracts; needed by leases and reconcile.")
@click.pass_context
def run(ctx: click.Context, names: tuple[str, ...], app_ref: str | None) -> None:
    """Run sweeps now, in this order. Exit 1 if one met rows that it could not handle; the others are run all the same."""
    invocation: Invocation = ctx.obj
    needing = next((name for name in names if name in _NEED_CONTRACTS), None)
    if needing is not None:
        app, _, loaded = load_user_app(invocation, app_ref, f"sweep run {needing}")
        app.shell.overrides.update(overrides_of(loaded.settings))
    else:
        app = open_app(invocation)
    settings = load(invocation).settings
    done = [run_sweep(app, name, settings) for name in names]
    facts = [run_facts(one) for one in done]
    emit(invocation, facts[0] if len(facts) == 1 else facts, _COLUMNS)
    ctx.exit(1 if any(one.errors for one in done) else 0)


@sweep.command("list")
@click.pass_obj
def list_sweeps(invocation: Invocation) -> None:
    """List the sweeps: when each runs, when it last did, and when it will again."""
    app = open_app(invocation)
    with app.ledger.read() as transaction:
        runs = sweep_runs.last_runs(transaction)
    now_us, served = app.shell.clock.now().wall_us, bool(live_workers(app))
    emit(
        invocation,
        schedules(load(invocation).settings, runs, now_us=now_us, served=served),
        ("sweep", "schedule", "last", "moved", "errors", "next"),
    )


@sweep.command()
@click.argument("name", required=False, type=click.Choice(list(SWEEP_SECONDS)))
@click.option("--limit", type=click.IntRange(1, DEFAULTS.list_max), default=20, show_default=True)
@click.pass_obj
def history(invocation: Invocation, name: str | None, limit: int) -> None:
    """Show the latest runs of one sweep, or of all, the newest first."""
    with open_app(invocation).ledger.read() as transaction:
        runs = sweep_runs.history(transaction, name, limit)
    emit(invocation, [run_facts(one) for one in runs], _COLUMNS)


def run_facts(run: SweepRun) -> dict[str, object]:
    """Return what is shown of one run."""
    return {
        "sweep": run.name,
        "started": utc(run.started_us),
        "ended": utc(run.ended_us),
        "examined": run.examined,
        "moved": run.moved,
        "errors": run.errors,
        "note": run.note,
    }
