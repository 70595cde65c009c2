"""`settled status`: counts, what waits longest, workers and sweeps."""

from dataclasses import asdict
from typing import Any

import click

from settled.core.words import Status
from settled_cli.commands.escalation import UNDELIVERED, undelivered_facts
from settled_cli.commands.pause import PAUSED
from settled_cli.invocation import Invocation, Leaf
from settled_cli.opening import load, open_app
from settled_cli.render import emit, show_table, utc, write
from settled_cli.schedules import schedules
from settled_cli.survey import Survey, survey


@click.command(cls=Leaf)
@click.pass_obj
def status(invocation: Invocation) -> None:
    """Show counts, what waits longest, workers and sweeps."""
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
        "escalations_undelivered": undelivered_facts(list(seen.undelivered)),
        "workers": [worker_facts(one) for one in seen.workers],
        "sweeps": schedules(load(invocation).settings, seen.sweeps, now_us=seen.now_us, served=bool(seen.workers)),
    }
    if invocation.for_programs:
        emit(invocation, answer)
        return
    write(f"{answer['database']}\n\n")
    if answer["paused"]:
        write("This ledger is a copy, or was moved: nothing is dispatched from it. See: settled doctor\n\n")
    if seen.paused:
        show_table(answer["pauses"], PAUSED)
        write("\n")
    counted = [{"status": name, "count": count, "oldest": answer["oldest"].get(name)} for name, count in seen.by_status.items()]
    show_table(counted, ("status", "count", "oldest"))
    waiting = [{"contract": name, "unknown": answer["unknown"].get(name, 0), "quarantined": answer["quarantined"].get(name, 0)}
               for name in sorted({*answer["unknown"], *answer["quarantined"]})]  # fmt: skip
    if waiting:
        write("\n")
        show_table(waiting, ("contract", "unknown", "quarantined"))
    if seen.incidents_open:
        write(f"\n{seen.incidents_open} open incidents: settled escalation list\n")
    if seen.undelivered:
        write("\n")
        show_table(answer["escalations_undelivered"], UNDELIVERED)
    write("\n")
    show_table(answer["workers"] or [{"worker": "no worker lives"}], ("worker", "pid", "since", "seen", "contracts"))
    write("\n")
    show_table(answer["sweeps"], ("sweep", "schedule", "last", "moved", "errors", "next"))


def by_contract(seen: Survey, wanted: Status) -> dict[str, int]:
    """Return how many operations of each contract are in a status, contracts without any left out."""
    return {name: of[wanted.value] for name, of in seen.by_contract.items() if of.get(wanted.value)}


def worker_facts(worker: Any) -> dict[str, Any]:
    """Return what is shown of a worker."""
    return {
        "worker": worker.incarnation,
        "pid": worker.pid,
        "since": utc(worker.started_us),
        "seen": utc(worker.seen_us),
        "contracts": list(worker.contracts),
    }
