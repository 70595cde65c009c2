"""Ask a probe what became of an operation, and record what its answer is worth.

Reading and recording are two transactions with the probe between them; a hold keeps two from asking at once, and dies
with its holder.
"""

from collections.abc import Sequence
from typing import NamedTuple

from settled.core.decide_evidence import Answer, decide_after_probe
from settled.core.decide_unknown import decide_unattended, probe_wait_us
from settled.core.evidence import ProbeResult
from settled.core.fold import Event
from settled.core.moment import Moment
from settled.core.row import Row
from settled.core.words import Status
from settled.execution.job import Job, Report
from settled.shell import Shell
from settled.steps.jobs import probe_job
from settled.steps.masks import without_sensitive
from settled.steps.readable import put_aside, readable_case, readable_text
from settled.store.bodies import body_digest
from settled.store.reads import ARGUMENTS, read_payload, read_row
from settled.store.transaction import Transaction
from settled.store.waiting import hold_for_probe, release_probe, reschedule
from settled.store.writer import Move, record


class Asking(NamedTuple):
    """A probe whose row is held, to be started. Its answer is judged by the moment that its job bears."""

    job: Job


class Prepared(NamedTuple):
    """What came of due rows: probes to start, and rows that moved without one."""

    asking: list[Asking]
    moved: list[tuple[Row, Sequence[Event]]]


def prepare_probes(shell: Shell, transaction: Transaction, rows: Sequence[Row], worker: int, now: Moment) -> Prepared:
    """Hold each row that has a probe; decide at once for those without. Contracts not registered here are left alone."""
    prepared = Prepared([], [])
    for row in rows:
        if row.contract not in shell.contracts:
            continue
        if shell.contracts[row.contract].has_probe:
            asking = _hold(shell, transaction, row, worker, now)
            prepared.asking.extend([] if asking is None else [asking])
        else:
            prepared.moved.extend(_without_probe(shell, transaction, row, now))
    return prepared


def record_answer(
    shell: Shell, transaction: Transaction, report: Report, worker: int, now: Moment
) -> tuple[Row, Sequence[Event]]:
    """Record one answer by the row as it is now, and give up the hold. A stale answer overwrites nothing.

    It is judged by when its own probe started: whatever the answer saw, it saw no earlier.
    """
    begun_us = report.job.claimed_boot_us
    started = Moment(now.wall_us - (now.boot_us - begun_us), begun_us, now.boot_id)
    row = read_row(transaction, report.job.row)
    result = report.answer or ProbeResult.failed(report.error_class or report.end.value)
    output = result.output_text if result.storable else None
    if output is not None and len(output.encode()) > shell.limits.result_bytes_max:
        result, output = ProbeResult.failed("output too large"), None
    case = readable_case(shell, transaction, row, now)
    if case is None:
        release_probe(transaction, [row.id], worker)
        put_aside(transaction, row, now.wall_us)
        return row, ()
    keeps = case.terms.result_retention != "none"
    result = without_sensitive(shell, transaction, case, result)
    answer = Answer(result, started, report.postcondition, body_digest(output) if output is not None and keeps else None)
    events = decide_after_probe(case, answer)
    outputs = {index: shell.codec.encode(output) for index, event in enumerate(events) if output is not None and event.data.get("out")}
    done = record(transaction, [Move(row, events, outputs)])[0]
    release_probe(transaction, [row.id], worker)
    if done.row is not None:
        due = next((event.data["due"] for event in reversed(events) if "due" in event.data), None)
        if due is not None and done.row.due_us != due and done.row.status in (Status.OUTCOME_UNKNOWN, Status.QUARANTINED):
            reschedule(transaction, done.row, due)
    return (done.row or row), (events if done.row is not None else ())


def _hold(shell: Shell, transaction: Transaction, row: Row, worker: int, now: Moment) -> Asking | None:
    case = shell.full_case(transaction, row, now)  # before the hold: a corrupt row must not keep one
    stored = read_payload(transaction, row.id, ARGUMENTS)
    if stored is None:  # purged: nothing to ask with, and no reason to look again at once
        reschedule(transaction, row, now.wall_us + probe_wait_us(case, 1))
        return None
    text = readable_text(shell, row, stored)
    if text is None:
        put_aside(transaction, row, now.wall_us)
        return None
    if not hold_for_probe(transaction, [row], worker):
        return None
    return Asking(probe_job(row, case.history, shell.terms_here(row.contract), text, now, shell.limits))


def _without_probe(shell: Shell, transaction: Transaction, row: Row, now: Moment) -> list[tuple[Row, Sequence[Event]]]:
    case = shell.full_case(transaction, row, now)
    events = decide_unattended(case) if row.status is Status.OUTCOME_UNKNOWN and row.reason is None else ()
    if not events:
        if row.status is not Status.PREPARED and row.due_us is not None:  # a retry's own time is no time for a probe
            reschedule(transaction, row, now.wall_us + probe_wait_us(case, 1))
        return []
    done = record(transaction, [Move(row, events)])[0]
    return [] if done.row is None else [(done.row, events)]
