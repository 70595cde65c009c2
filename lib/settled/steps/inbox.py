"""Attach evidence that arrived before the operation it speaks of."""

import json

from settled.core.decide_evidence import Answer, decide_after_probe
from settled.core.evidence import ProbeResult
from settled.core.moment import Moment
from settled.core.row import Row
from settled.shell import Shell
from settled.steps.masks import without_sensitive
from settled.steps.readable import readable_text
from settled.store.bodies import body_digest
from settled.store.inbox import take
from settled.store.reads import inbox_of
from settled.store.transaction import Transaction
from settled.store.writer import Move, record


def attach_waiting(shell: Shell, transaction: Transaction, row: Row, now: Moment) -> Row:
    """Give a new operation what waits for its provider reference, in the transaction that stores it."""
    assert row.provider_reference is not None
    noted = []
    for entry, source, _, body in inbox_of(transaction, row.provider_reference):
        text = readable_text(shell, row, body)
        if text is None:
            continue  # it stays where it is: the operation goes on without it
        row = note_evidence(shell, transaction, row, ProbeResult.from_json(json.loads(text)), source, now)
        noted.append(entry)
    if noted:
        take(transaction, noted)
    return row


def note_evidence(
    shell: Shell, transaction: Transaction, row: Row, result: ProbeResult, source: str, now: Moment, *, postcondition: bool | None = None
) -> Row:
    """Record a provider's notice about one operation, judged like a probe's answer; return the row after it."""
    output, case = result.output_text, shell.full_case(transaction, row, now)
    result = without_sensitive(shell, transaction, case, result)
    answer = Answer(result, now, postcondition, None if output is None else body_digest(output), source)
    events = decide_after_probe(case, answer)
    outputs = {index: shell.codec.encode(output) for index, event in enumerate(events) if output is not None and event.data.get("out")}
    recorded = record(transaction, [Move(row, events, outputs)])[0]
    if recorded.error is not None:
        raise recorded.error
    return recorded.row or row
