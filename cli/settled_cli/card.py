"""The page of one operation as a person reads it at night: one sentence, then the evidence, then one next command.

Promise: exactly one command is suggested, and none of those suggested can make a second effect.
"""

import shlex
from collections.abc import Mapping
from typing import Any, Final

from settled.app import App
from settled.core.proposal import Proposal
from settled.core.text import one_line
from settled.core.words import Reason, Status
from settled.operation import Operation
from settled.steps.awaiting import probe_of
from settled_cli.explaining import REASONS, WHERE
from settled_cli.render import cell, show_table, write
from settled_cli.summaries import shown
from settled_cli.workers import live_workers

_FACTS_MAX: Final = 300
_CLAIMED: Final = {"actor": "actor (claimed)", "approved_by": "approved by (claimed)", "reason_given": "reason"}
_NOTHING_TO_SAY: Final = (None, False, 0)
_HIDDEN: Final = ("output", "in_progress", "error")  # said elsewhere, or only where there is something to say


def show_card(app: App, operation: Operation) -> None:
    """Print the page."""
    operation = operation.masked()
    proposal = app.proposal(operation.operation_id)
    write(f"{cell(headline(operation))}\n")
    if operation.error is not None:
        write(f"Its last error was: {cell(operation.error)}\n")
    if operation.duplicate_suspected:
        write("A second effect is suspected: two confirmations name different provider operation IDs.\n")
    if proposal is not None:
        first = proposal.wanted.decision
        write(f"Proposal {proposal.number}: {proposal.wanted.verb}, by {cell(first.actor)} (claimed), because {cell(first.reason)}\n")
    if operation.evidence:
        write("\nevidence\n")
        show_table([{**one, "facts": _facts(one["facts"])} for one in operation.evidence], ("at", "source", "type", "verdict", "facts"))
    if operation.attempt_records:
        write("\nattempts\n")
        show_table(_records(operation), ("number", "dispatched_at", "end", "outcome", "fence", "closed_by"))
    write("\n")
    facts = {name: value for name, value in shown(operation).items() if name not in _HIDDEN and value not in _NOTHING_TO_SAY}
    if operation.has_output:
        facts["output"] = shown(operation)["output"]
    width = max(map(len, facts))
    write("".join(f"{name.replace('_', ' '):<{width}}  {one_line(cell(value), 2000)}\n" for name, value in facts.items()))
    write(f"\nnext: {next_command(app, operation, proposal)}\n")


def headline(operation: Operation) -> str:
    """Say in one sentence what it is, where it stands, and why."""
    said = f"{operation.operation_id} of {operation.contract} {WHERE[operation.status]}"
    if operation.reason is None:
        return f"{said}."
    return f"{said}; {operation.reason}: {REASONS.get(Reason(operation.reason), 'see settled op events')}."


def next_command(app: App, operation: Operation, proposal: Proposal | None) -> str:
    """Return the one command that helps now. It looks, waits or asks; what decides is for the person to write."""
    named = shlex.quote(cell(operation.operation_id))
    if operation.settled:
        return f"settled op events {named}"
    if app.ledger.misplaced:
        return "settled doctor"
    if proposal is not None:
        return "settled quarantine list --pending"
    if operation.status is Status.DISPATCHED:
        return f"settled op wait {named}"
    if operation.status is Status.PREPARED:
        waits = operation.reason is not None or operation.waits_for not in (None, "dispatch")
        served = any(operation.contract in worker.contracts for worker in live_workers(app))
        return f"settled op explain {named}" if waits or served else "settled worker run"
    if operation.reason != Reason.CONFLICTING_EVIDENCE and probe_of(app.shell, operation.operation_id) != "no":
        return f"settled op probe {named}"
    return f"settled op explain {named}"


def _facts(facts: Mapping[str, Any]) -> str:
    said = (f"{_CLAIMED.get(name, name.replace('_', ' '))} {cell(value)}" for name, value in facts.items())
    return one_line("; ".join(said), _FACTS_MAX)


def _records(operation: Operation) -> list[Mapping[str, Any]]:
    """Return the attempts as people see them: once an operation is settled, what stayed open is no alarm. Programs get all."""
    if not operation.settled:
        return list(operation.attempt_records)
    alarms = {"fence": "may_still_run", "closed_by": "open"}
    return [{**one, **{name: None for name, word in alarms.items() if one[name] == word}} for one in operation.attempt_records]
