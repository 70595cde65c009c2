"""Read the gauges that come from the ledger, its files and its disk.

Promise: no settled row is read, so that an answer costs the same however long the history is; what cannot be read is left out.
"""

from pathlib import Path
from shutil import disk_usage

from settled.clock import Clock
from settled.core.moment import SECOND_US
from settled.core.words import Status
from settled.execution.incarnation import lock_is_free
from settled.logs import get_log
from settled.store import incidents, outbox, pauses, workers
from settled.store.ledger import Ledger
from settled.store.maintenance import log_bytes
from settled.store.reads import counts
from settled.store.transaction import Transaction
from settled.store.unknowns import oldest_unknown_us
from settled.store.waiting import next_due_us
from settled_worker.watching.counting import Contracts, Values
from settled_worker.watching.names import OTHER

log = get_log("settled.worker")
_SCOPES = ("all", "contract", "queue")
_CHANNELS_MAX = 50
_NOBODY = "none"  # no worker has chosen a channel yet


def read_gauges(ledger: Ledger, clock: Clock, contracts: Contracts) -> Values:
    """Look once. Never raises."""
    found: Values = {"settled_ledger_readable": {(): 0.0}}
    try:
        found |= _files(ledger)
        now_us = clock.now().wall_us
        with ledger.read() as transaction:
            found |= _work(transaction, now_us, contracts)
            found |= _people(transaction, now_us)
            known = workers.live(transaction)
        alive = [one for one in known if one.kind == "worker" and _is_alive(one)]
        found["settled_workers_live"] = {(): len(alive)}
        found["settled_worker_silent_seconds"] = {(): max((_seconds(now_us, one.seen_us) for one in alive), default=0.0)}
        found["settled_ledger_is_a_copy"] = {(): float(bool(ledger.misplaced))}
        found["settled_ledger_readable"] = {(): 1.0}
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the ledger, the rest of the answer still says something
        log.debug("metrics.ledger_not_read", error=str(error))
    return found


def _work(transaction: Transaction, now_us: int, contracts: Contracts) -> Values:
    by_status: dict[tuple[str, ...], float] = {}
    unknown: dict[tuple[str, ...], float] = {}
    tallied = counts(transaction)
    for name, of in tallied.items():
        label = contracts.label(name)
        for status in Status:
            by_status[label, status.value] = by_status.get((label, status.value), 0) + of.get(status.value, 0)
        since_us = oldest_unknown_us(transaction, name) if of.get(Status.OUTCOME_UNKNOWN.value) else None
        unknown[(label,)] = max(unknown.get((label,), 0.0), 0.0 if since_us is None else _seconds(now_us, since_us))
    due_us = next_due_us(transaction, [name for name, of in tallied.items() if of.get(Status.PREPARED.value)])
    return {
        "settled_operations": by_status,
        "settled_oldest_unknown_seconds": unknown,
        "settled_oldest_due_seconds": {(): 0.0 if due_us is None else _seconds(now_us, due_us)},
    }


def _people(transaction: Transaction, now_us: int) -> Values:
    paused: dict[tuple[str, ...], float] = {(scope,): 0.0 for scope in _SCOPES}
    for one in pauses.active(transaction):
        paused[(one.scope,)] += 1
    waiting: dict[tuple[str, ...], float] = {}
    failing: dict[tuple[str, ...], float] = {}
    oldest: dict[tuple[str, ...], float] = {}
    for number, queue in enumerate(outbox.undelivered(transaction)):
        label = ((queue.channel or _NOBODY) if number < _CHANNELS_MAX else OTHER,)
        waiting[label] = waiting.get(label, 0) + queue.notifications
        failing[label] = max(failing.get(label, 0.0), float(queue.error is not None))
        oldest[label] = max(oldest.get(label, 0.0), _seconds(now_us, queue.oldest_us))
    return {
        "settled_paused": paused,
        "settled_incidents_open": {(): incidents.count_open(transaction)},
        "settled_notifications_undelivered": waiting,
        "settled_notifications_failing": failing,
        "settled_notifications_oldest_undelivered_seconds": oldest,
    }


def _files(ledger: Ledger) -> Values:
    sizes: dict[tuple[str, ...], float] = {("database",): ledger.path.stat().st_size, ("wal",): log_bytes(ledger)}
    return {
        "settled_ledger_bytes": sizes,
        "settled_disk_free_bytes": {(): disk_usage(ledger.path.parent).free},
    }


def _is_alive(one: workers.WorkerRow) -> bool:
    return lock_is_free(Path(one.lock_path), one.lock_device, one.lock_inode) is False


def _seconds(now_us: int, since_us: int) -> float:
    return max(0, now_us - since_us) / SECOND_US
