"""`settled health`: what is wrong now, one line each, and one exit code, for whatever asks every minute."""

from collections.abc import Mapping
from shutil import disk_usage
from typing import Any

import click

from settled.core.errors import LedgerUnavailableError
from settled.core.moment import SECOND_US
from settled.core.text import one_line, safe_str
from settled_cli.ailments import Ailment, ailments, disk_is_short
from settled_cli.invocation import Invocation, Leaf
from settled_cli.opening import is_there, ledger_file, load, missing, open_app
from settled_cli.render import emit, write
from settled_cli.summaries import undelivered_facts
from settled_cli.survey import Survey, survey


@click.command(cls=Leaf)
@click.pass_context
def health(ctx: click.Context) -> None:
    """Say whether all is well, and what is not with where to read on; exit 1 if anything is wrong."""
    invocation: Invocation = ctx.obj
    path = ledger_file(invocation)
    if not is_there(path):
        raise missing(path)
    limits = load(invocation).settings.health
    free = disk_usage(path.parent).free  # before the ledger is opened, which may need room itself
    found = list(disk_is_short(str(path), free, limits))
    facts: dict[str, Any] = {"disk_free_bytes": free, "paused": []}
    try:
        seen = survey(open_app(invocation))
        found += ailments(seen, limits)
        facts |= facts_of(seen)
    except LedgerUnavailableError as error:
        if not found:
            raise
        found.append(Ailment(safe_str(error), "the-store-is-unavailable"))
    _show(invocation, found, facts)
    ctx.exit(1 if found else 0)


def facts_of(seen: Survey) -> dict[str, Any]:
    """Return what was looked at, as programs get it. Ages in seconds, None where nothing waits."""
    return {
        "paused": [str(one) for one in seen.paused],
        "restored": seen.restored,
        "oldest_due_seconds": seen.due_seconds,
        "oldest_unknown_seconds": seen.unknown_seconds,
        "incidents_open": seen.incidents_open,
        "undelivered": undelivered_facts(seen.undelivered),
        "workers": [
            {"worker": one.incarnation, "pid": one.pid, "seen_seconds_ago": max(0, seen.now_us - one.seen_us) / SECOND_US}
            for one in seen.workers
        ],
    }


def _show(invocation: Invocation, found: list[Ailment], facts: Mapping[str, Any]) -> None:
    if invocation.for_programs:
        findings = [{"problem": one.problem, "see": one.see} for one in found]
        emit(invocation, {"healthy": not found, "problems": [one.problem for one in found], "findings": findings, **facts})
        return
    write("not healthy\n" if found else "healthy\n")
    write("".join(f"{one_line(one.problem, 2000)} (see {one.see})\n" for one in found))
    write("".join(f"note: {one_line(one, 2000)}\n" for one in facts["paused"]))
