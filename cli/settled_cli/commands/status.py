"""`settled status`: what a tired person looks at first, on one screen: counts, what waits, who works, what nobody was told."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import click

from settled.core.moment import SECOND_US
from settled.core.words import SETTLED, Status
from settled_cli.commands.pause import PAUSED
from settled_cli.invocation import Invocation, Leaf
from settled_cli.opening import load, open_app
from settled_cli.render import emit, show_table, utc, write
from settled_cli.schedules import schedules
from settled_cli.summaries import ago, undelivered_facts
from settled_cli.survey import UNSETTLED, Survey, survey

_CONTRACTS_MAX: Final = 3  # on the screen; programs get all
_WORKERS_MAX: Final = 3


@click.command(cls=Leaf)
@click.pass_obj
def status(invocation: Invocation) -> None:
    """Show counts, what waits longest, workers, sweeps, and what nobody was told."""
    app = open_app(invocation)
    seen = survey(app)
    answer: dict[str, Any] = {
        "database": str(app.ledger.path),
        "paused": "restored" if app.ledger.misplaced else None,
        "pauses": [asdict(one) for one in seen.paused],
        "counts": seen.by_status,
        "oldest": {one.value: utc(since) for one, since in seen.oldest_us.items()},
        "unknown": by_contract(seen, Status.OUTCOME_UNKNOWN),
        "quarantined": by_contract(seen, Status.QUARANTINED),
        "incidents_open": seen.incidents_open,
        "escalations_undelivered": undelivered_facts(seen.undelivered),
        "proposals_pending": seen.proposals,
        "workers": [worker_facts(one, seen.now_us) for one in seen.workers],
        "sweeps": schedules(load(invocation).settings, seen.sweeps, now_us=seen.now_us, served=bool(seen.workers)),
    }
    if invocation.for_programs:
        emit(invocation, answer)
    else:
        _show(answer, seen)


def _show(answer: Mapping[str, Any], seen: Survey) -> None:
    write(f"{answer['database']} at {utc(seen.now_us)}\n")
    if answer["paused"]:
        write("This ledger is a copy, or was moved: nothing is dispatched from it. See: settled doctor\n")
    if seen.paused:
        show_table(answer["pauses"], PAUSED)
    settled = ", ".join(f"{answer['counts'][one.value]} {one.value}" for one in Status if one in SETTLED)
    write(f"ended: {settled}\n{_told(seen)}\n")
    show_table([_counted(seen, one) for one in UNSETTLED], ("status", "count", "oldest"))
    _show_contracts(answer)
    write("\n")
    workers = answer["workers"][:_WORKERS_MAX] or [{"worker": "no worker lives"}]
    show_table(workers, ("worker", "pid", "uptime", "last_tick", "contracts"))
    _more(len(answer["workers"]) - _WORKERS_MAX, "workers")
    show_table([_timed(one) for one in answer["sweeps"]], ("sweep", "schedule", "last", "moved", "errors", "next"))


def _told(seen: Survey) -> str:
    waiting = sum(one.notifications for one in seen.undelivered)
    told = "nothing undelivered" if not waiting else f"{waiting} notifications UNDELIVERED"
    see = " (settled escalation list)" if seen.incidents_open else ""
    asked = f"\nproposals: {seen.proposals} wait for a second person (settled quarantine list --pending)" if seen.proposals else ""
    return f"incidents: {seen.incidents_open} open, {told}{see}{asked}"


def _counted(seen: Survey, status: Status) -> dict[str, Any]:
    age = seen.age_seconds(status)
    return {"status": status.value, "count": seen.by_status[status.value], "oldest": None if age is None else ago(age)}


def _show_contracts(answer: Mapping[str, Any]) -> None:
    names = sorted({*answer["unknown"], *answer["quarantined"]}, key=lambda name: (-answer["quarantined"].get(name, 0), name))
    rows = [{"contract": one, "unknown": answer["unknown"].get(one, 0), "quarantined": answer["quarantined"].get(one, 0)} for one in names]
    if rows:
        write("\n")
        show_table(rows[:_CONTRACTS_MAX], ("contract", "quarantined", "unknown"))
        _more(len(rows) - _CONTRACTS_MAX, "contracts")


def _more(count: int, what: str) -> None:
    if count > 0:
        write(f"and {count} more {what}: settled status -o json\n")


def _timed(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep with the time of day alone: the day stands at the top, and both are near it."""
    return {name: value[11:] if name in ("last", "next") and value else value for name, value in sweep.items()}


def by_contract(seen: Survey, wanted: Status) -> dict[str, int]:
    """Return how many operations of each contract are in a status, contracts without any left out."""
    return {name: of[wanted.value] for name, of in seen.by_contract.items() if of.get(wanted.value)}


def worker_facts(worker: Any, now_us: int) -> dict[str, Any]:
    """Return what is shown of a worker."""
    return {
        "worker": worker.incarnation,
        "pid": worker.pid,
        "since": utc(worker.started_us),
        "seen": utc(worker.seen_us),
        "uptime": ago(max(0, now_us - worker.started_us) / SECOND_US),
        "last_tick": f"{ago(max(0, now_us - worker.seen_us) / SECOND_US)} ago",
        "contracts": list(worker.contracts),
    }
