"""Record how attempts ended: a batch of reports, in one transaction, each with what follows from it.

Promise: a report is never dropped. One that finds its row moved is kept as late evidence, one that the store refuses is
recorded as a lost outcome.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from settled.core.case import Case
from settled.core.decide_end import End, EndFacts, decide_end
from settled.core.decide_late import decide_late
from settled.core.errors import LedgerStateError
from settled.core.fold import Event
from settled.core.masking import mask_of
from settled.core.moment import Moment
from settled.core.row import Row
from settled.core.words import Status
from settled.execution.job import End as JobEnd
from settled.execution.job import Report
from settled.shell import Shell
from settled.store.bodies import body_digest
from settled.store.reads import read_row
from settled.store.transaction import Transaction
from settled.store.writer import Move, Recorded, record

# What the core calls the ends of a handler; an answer is that of a probe.
_ENDS: Final[Mapping[JobEnd, End]] = {one: End(one.value) for one in JobEnd if one is not JobEnd.ANSWERED}


class Ended(NamedTuple):
    """A report with the row as its claim left it; `by_person` names a stop that a person asked for."""

    row: Row
    report: Report
    by_person: bool = False
    interruption: str | None = None


class Settled(NamedTuple):
    """What a report led to: the row now, the events, and the store's error where the report itself was refused."""

    row: Row
    events: Sequence[Event]
    error: Exception | None = None


def record_ends(shell: Shell, transaction: Transaction, ended: Sequence[Ended], now: Moment) -> list[Settled]:
    """Record reports of different operations. All that is plain goes in one batch; the rest is re-read one by one."""
    moves = [_move(shell, transaction, one, now) for one in ended]
    recorded = record(transaction, [move for move in moves if move is not None])
    results = iter(recorded)
    settled = []
    for one, move in zip(ended, moves, strict=True):
        done = Recorded(None) if move is None else next(results)
        if done.row is not None and move is not None:
            settled.append(Settled(done.row, move.events))
        else:
            settled.append(_readable_again(shell, transaction, one, now, done.error))
    return settled


def facts_of(case: Case, ended: Ended) -> EndFacts:
    """Return what the core is told of a report. Sensitive values of the arguments are never part of an error text that is kept."""
    report, terms = ended.report, case.terms
    output = None if terms.result_retention == "none" else report.output
    error = _error(report)
    if error is not None and terms.sensitive_fields:
        error = mask_of(terms.sensitive_fields, report.job.arguments).text(error)
    return EndFacts(
        end=_ENDS[report.end],
        fence=report.fence,
        postcondition=report.postcondition,
        output_digest=None if output is None else body_digest(output),
        provider_operation_id=report.provider_operation_id,
        error=error,
        retryable=report.retryable,
        by_person=ended.by_person,
        interruption=ended.interruption,
    )


def _move(shell: Shell, transaction: Transaction, ended: Ended, now: Moment) -> Move | None:
    """Decide by the row as the claim left it: a plain return needs no reading, the guard tells whether it was plain."""
    report, row = ended.report, ended.row
    if report.late or report.end is not JobEnd.RETURNED or report.postcondition is False:
        return None
    if row.status is not Status.DISPATCHED or row.attempt != report.job.attempt:  # given up before, whatever the report says of itself
        return None
    return _decided(shell, shell.plain_case(transaction, row, now), ended)


def _readable_again(shell: Shell, transaction: Transaction, ended: Ended, now: Moment, refused: Exception | None) -> Settled:
    """A row that cannot be read is left as it is, for `audit verify` and a person; the others of the batch go on."""
    try:
        return _again(shell, transaction, ended, now, refused)
    except LedgerStateError as error:
        return Settled(ended.row, (), error)


def _again(shell: Shell, transaction: Transaction, ended: Ended, now: Moment, refused: Exception | None) -> Settled:
    """Decide by the row as it is now: still this attempt's, or moved meanwhile, when the report is late evidence."""
    row = read_row(transaction, ended.row.id)
    case = shell.full_case(transaction, row, now)
    mine = row.status is Status.DISPATCHED and row.attempt == ended.report.job.attempt and row.lease_owner == ended.row.lease_owner
    if mine and not ended.report.late:
        move = _lost(case, ended) if refused is not None else _decided(shell, case, ended)
    else:
        move = _late(shell, case, ended)
    done = record(transaction, [move])[0]
    if done.error is not None and refused is None and mine:
        return _again(shell, transaction, ended, now, done.error)
    return Settled(done.row or row, move.events if done.row is not None else (), refused or done.error)


def _decided(shell: Shell, case: Case, ended: Ended) -> Move:
    events = decide_end(case, facts_of(case, ended))
    return Move(case.row, events, _outputs(shell, events, ended.report.output))


def _late(shell: Shell, case: Case, ended: Ended) -> Move:
    events = decide_late(case, ended.report.job.attempt, facts_of(case, ended))
    return Move(case.row, events, _outputs(shell, events, ended.report.output))


def _lost(case: Case, ended: Ended) -> Move:
    """The store refused what the handler gave: the outcome is not storable, hence unknown, and says so."""
    facts = EndFacts(end=End.RESULT_NOT_STORABLE, fence=ended.report.fence, error="the result could not be stored")
    return Move(case.row, decide_end(case, facts))


def _outputs(shell: Shell, events: Sequence[Event], output: str | None) -> dict[int, str]:
    """Store the output with the event that brought it; an event that shows an earlier part brings none."""
    if output is None:
        return {}
    return {
        index: shell.codec.encode(output) for index, event in enumerate(events) if event.data.get("out") and "part" not in event.data
    }


def _error(report: Report) -> str | None:
    if report.error_class is None:
        return report.error_text
    return f"{report.error_class}: {report.error_text}" if report.error_text else report.error_class
