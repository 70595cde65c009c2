"""Collect everything about one operation for a post-mortem, so that nothing must be asked of the ledger again.

Promise: no arguments and no output are in it; sensitive fields are masked and the configured redactions applied to every text.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from typing import Any, Final

from settled.app import App
from settled.core.moment import at
from settled.core.words import EventType
from settled.steps.resolve import must_find
from settled.store import incidents, outbox
from settled.store.audit import head
from settled.store.snapshots import read_terms
from settled.store.transaction import Transaction
from settled.store.workers import find
from settled_cli.card import headline, next_command
from settled_cli.explaining import explain_operation
from settled_cli.summaries import event_rows

SCHEME: Final = "settled incident 1"
_DECISIONS: Final = frozenset({
    EventType.OPERATOR_CONFIRMED, EventType.OPERATOR_REJECTED, EventType.OPERATOR_RETRY_AUTHORIZED, EventType.PROPOSED, EventType.DECLINED,
    EventType.APPROVED, EventType.CANCELLED, EventType.STOP_REQUESTED, EventType.ACKNOWLEDGED, EventType.ASSIGNED, EventType.SNOOZED,
    EventType.RESTORED,
})  # fmt: skip


def collect(app: App, operation_id: str) -> dict[str, Any]:
    """Return everything as plain data. Raises OperationNotFoundError."""
    operation = app.get(operation_id)
    events = event_rows(app.events(operation_id), operation.mask)
    shown = {name: value for name, value in operation.to_json().items() if name not in ("output", "evidence", "attempt_records")}
    with app.ledger.read() as transaction:
        row = must_find(transaction, operation_id)
        told = _told(transaction, row.id)
        used = {one["terms"] for one in operation.attempt_records if one["terms"] is not None}
        terms = {str(key): _plain(asdict(value)) for key, value in read_terms(transaction, used).items()}
        who = {one["worker"] for one in operation.attempt_records if one["worker"] is not None}
        workers = [_timed(one._asdict()) for one in find(transaction, who).values()]
    last = head(app.ledger)
    found = {
        "scheme": SCHEME,
        "settled": version("settled"),
        "exported_at": at(app.shell.clock.now().wall_us),
        "ledger": {"path": str(app.ledger.path), "id": app.ledger.meta["ledger_id"], "audit_head": f"{last.seal_id}:{last.hex}"},
        "summary": headline(operation.masked()),
        "explanation": explain_operation(app, operation_id),
        "next": next_command(app, operation, app.proposal(operation_id)),
        "operation": shown,
        "attempts": operation.to_json()["attempt_records"],
        "evidence": operation.to_json()["evidence"],
        "events": events,
        "decisions": [one for one in events if one["type"] in _DECISIONS],
        **told,
        "terms": terms,
        "workers": workers,
    }
    redacted: dict[str, Any] = _redacted(_plain(found), app.redact)
    return redacted


def _told(transaction: Transaction, row_id: int) -> dict[str, Any]:
    """Return the incidents of an operation, and what was sent about them; bodies are left out, they name nothing more."""
    known = incidents.of_operation(transaction, row_id)
    sent = outbox.of_incidents(transaction, [one.id for one in known])
    return {
        "incidents": [_timed(one._asdict()) for one in known],
        "notifications": [_timed({name: value for name, value in one._asdict().items() if name != "body"}) for one in sent],
    }


def _timed(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{name[:-3]}_at" if name.endswith("_us") else name: at(value) if name.endswith("_us") and value is not None else value
        for name, value in facts.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {redact(name): _redacted(one, redact) for name, one in value.items()}
    if isinstance(value, list):
        return [_redacted(one, redact) for one in value]
    return redact(value) if isinstance(value, str) else value
