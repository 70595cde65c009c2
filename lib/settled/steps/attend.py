"""What people say of an incident without deciding it: I have it, somebody has it, tell me again later.

Promise: each is one event of the operation, with who said it; no status, no outcome and no version moves.
"""

from datetime import timedelta
from typing import Any, Final

from settled.core.errors import TransitionRefusedError
from settled.core.fold import Event
from settled.core.moment import SECOND_US, at, utc_us
from settled.core.row import Row
from settled.core.words import EventType
from settled.shell import Shell
from settled.steps.persons import note_text, who_acts
from settled.steps.resolve import must_find
from settled.store import incidents
from settled.store.writer import Move, record

SNOOZE_MAX: Final = timedelta(days=366)


def acknowledge(shell: Shell, operation_id: str, actor: object, reason: object) -> Row:
    """Stop ladder and reminders: somebody looks at it."""
    return _attend(shell, operation_id, "acknowledge", EventType.ACKNOWLEDGED, _said(shell, actor, reason))


def assign(shell: Shell, operation_id: str, assignee: object, actor: object, reason: object) -> Row:
    """Stop ladder and reminders: somebody named looks at it."""
    said = _said(shell, actor, reason) | {"assigned_to": note_text(assignee, "assignee")}
    return _attend(shell, operation_id, "assign", EventType.ASSIGNED, said)


def snooze(shell: Shell, operation_id: str, until: object, actor: object, reason: object) -> Row:
    """Stop ladder and reminders until then, when it is told again and the ladder goes on."""
    until_us, now_us = utc_us(until, "until", "Nothing was changed."), shell.clock.now().wall_us
    if not now_us < until_us <= now_us + int(SNOOZE_MAX.total_seconds()) * SECOND_US:
        raise ValueError(f"until must lie ahead, by at most {SNOOZE_MAX.days} days, not {at(until_us).isoformat()}. Nothing was changed.")
    return _attend(shell, operation_id, "snooze", EventType.SNOOZED, _said(shell, actor, reason) | {"until_us": until_us})


def _said(shell: Shell, actor: object, reason: object) -> dict[str, Any]:
    why = {} if reason is None else {"reason_given": note_text(reason, "reason")}
    name, person = note_text(actor, "actor"), who_acts(shell)
    return {"actor": name, **why, "os_user": person.os_user, "principal": person.principal}


def _attend(shell: Shell, operation_id: str, verb: str, kind: EventType, data: dict[str, Any]) -> Row:
    with shell.ledger.write() as transaction:
        row = must_find(transaction, operation_id)
        if not any(one.closed_us is None for one in incidents.of_operation(transaction, row.id)):
            raise TransitionRefusedError(operation_id, row.status, verb, "no incident of it is open")
        event = Event(kind, row.status, row.attempt, shell.clock.now().wall_us, data)
        done = record(transaction, [Move(row, [event])])[0]
        if done.error is not None:
            raise done.error
        if done.row is None:
            raise TransitionRefusedError(operation_id, row.status, verb, "it was moved at the same moment")
        return done.row
