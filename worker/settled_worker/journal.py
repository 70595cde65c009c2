"""Log what was recorded, after it was: a line for each batch, and a line of its own for whatever is not confirmed."""

import logging
from collections.abc import Callable, Iterable, Sequence

from settled.core.fold import Event
from settled.core.row import Row
from settled.core.words import EventType, Status
from settled.logs import get_log
from settled.steps.ends import Settled

_WARNED = (Status.QUARANTINED, Status.OUTCOME_UNKNOWN)
log = get_log("settled.worker")


class LogJournal:
    """Writes to the log. Arguments and outputs are never part of a line. `heard` hears of each move."""

    def __init__(self, heard: Callable[[Row, Sequence[Event]], None] | None = None) -> None:
        self._heard = heard or log_moves

    def settled(self, settled: Sequence[Settled]) -> None:
        """Log one step."""
        if not settled:
            return
        confirmed = sum(1 for one in settled if one.row.status is Status.CONFIRMED)
        log.info("worker.recorded", confirmed=confirmed, other=len(settled) - confirmed)
        for one in settled:
            if one.error is not None:
                of, number = one.row.operation_id, one.row.attempt
                log.error("operation.result_refused_by_store", operation_id=of, attempt=number, error=str(one.error))
            self._heard(one.row, one.events)


def log_moves(row: Row, events: Iterable[Event]) -> None:
    """Log the moves of one operation by their event names."""
    tells_all = log.takes(logging.DEBUG)
    for event in events:
        if event.status is Status.CONFIRMED and not tells_all:
            continue
        write = log.debug if event.status is Status.CONFIRMED else log.warning if event.status in _WARNED else log.info
        if event.type is EventType.QUARANTINED:
            write = log.error
        write(
            f"operation.{event.type.value}",
            operation_id=row.operation_id,
            contract=row.contract,
            attempt=event.attempt,
            status=event.status.value,
            reason=event.data.get("reason") or event.data.get("why"),
            error=event.data.get("error"),
        )
