"""`settled health`: one line, one exit code, for whatever asks every minute."""

from shutil import disk_usage

import click

from settled.config import Settings
from settled.core.errors import LedgerUnavailableError
from settled.core.moment import SECOND_US
from settled.core.text import safe_str
from settled.core.words import Status
from settled.steps.pausing import ITSELF
from settled_cli.invocation import Invocation, Leaf
from settled_cli.opening import is_there, ledger_file, load, missing, open_app
from settled_cli.render import emit
from settled_cli.survey import DISK_FREE_BYTES_MIN, Survey, survey


@click.command(cls=Leaf)
@click.pass_context
def health(ctx: click.Context) -> None:
    """Say in one line whether all is well; exit 1 if not."""
    invocation: Invocation = ctx.obj
    path = ledger_file(invocation)
    if not is_there(path):
        raise missing(path)
    free = disk_usage(path.parent).free  # before the ledger is opened, which may need room itself
    problems = [f"the disk of {path} has only {free} bytes free"] if free < DISK_FREE_BYTES_MIN else []
    paused: list[str] = []
    try:
        seen = survey(open_app(invocation))
        paused = [str(one) for one in seen.paused]
        problems += ailments(seen, load(invocation).settings)
    except LedgerUnavailableError as error:
        if not problems:
            raise
        problems.append(safe_str(error))
    emit(invocation, {"healthy": not problems, "problems": problems, "paused": paused})
    ctx.exit(1 if problems else 0)


def ailments(seen: Survey, settings: Settings) -> list[str]:
    """Return what is wrong now, each in a few words."""
    limits = settings.health
    problems = []
    alive = [one for one in seen.workers if (seen.now_us - one.seen_us) / SECOND_US <= limits.worker_silent_seconds]
    if not seen.workers:
        problems.append("no worker lives")
    elif not alive:
        problems.append(f"no worker was seen for {limits.worker_silent_seconds:g} s")
    swept = seen.sweeps.get("leases")
    if seen.workers and swept is not None and (seen.now_us - swept.ended_us) / SECOND_US > limits.worker_silent_seconds:
        problems.append(f"no sweep has ended for {limits.worker_silent_seconds:g} s although a worker lives")
    due = seen.due_seconds
    if due is not None and due > limits.oldest_due_seconds:
        held = f"; {'; '.join(map(str, seen.paused))}" if seen.paused else ""
        problems.append(f"an operation has been due for {due:.0f} s (limit {limits.oldest_due_seconds:g}){held}")
    unknown = seen.age_seconds(Status.OUTCOME_UNKNOWN)
    if unknown is not None and unknown > limits.oldest_unknown_seconds:
        problems.append(f"an outcome has been unknown for {unknown:.0f} s (limit {limits.oldest_unknown_seconds:g})")
    if seen.refused:
        problems.append(f"handlers of {', '.join(seen.refused)} hang, and a worker claims no more of them (abandoned_limit)")
    if seen.restored:
        problems.append("the ledger is a copy, or was moved (restored): nothing is dispatched from it until settled db adopt")
    problems += [str(one) for one in seen.paused if one.actor == ITSELF]
    for one in seen.undelivered:
        age = (seen.now_us - one.oldest_us) / SECOND_US
        if age > limits.oldest_undelivered_seconds:
            where = f"channel {one.channel} has" if one.channel else "no worker has routed"
            why = f": {one.error}" if one.error else ""
            problems.append(f"{where} {one.notifications} notifications undelivered, the oldest for {age:.0f} s{why}")
    if seen.overdue is not None:
        problems.append(f"{seen.overdue} is unknown for longer than its contract allows")
    return problems
