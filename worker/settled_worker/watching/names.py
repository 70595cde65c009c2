"""Every metric there is: its name, kind, labels and meaning. The documents and the alerts are held to this table."""

from typing import Final, Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One metric. A counter's name ends in _total; `labels` have a bounded number of values each."""

    kind: Kind
    labels: tuple[str, ...]
    says: str


# From the ledger, the same whichever worker is asked.
LEDGER: Final[dict[str, Metric]] = {
    "settled_operations": Metric("gauge", ("contract", "status"), "Operations by status."),
    "settled_oldest_due_seconds": Metric("gauge", (), "How long the first operation has waited beyond its time; 0 where none does."),
    "settled_oldest_unknown_seconds": Metric(
        "gauge", ("contract",), "How long the outcome has been unknown that has been so for longest, quarantine left out; 0 where none is."
    ),
    "settled_incidents_open": Metric("gauge", (), "Incidents that are open."),
    "settled_notifications_undelivered": Metric("gauge", ("channel",), "Notifications that no one has taken yet."),
    "settled_notifications_failing": Metric("gauge", ("channel",), "1 where the last try of an undelivered notification failed."),
    "settled_notifications_oldest_undelivered_seconds": Metric("gauge", ("channel",), "How long the oldest of them has waited."),
    "settled_paused": Metric("gauge", ("scope",), "Pauses in force: of all, of contracts, of queues."),
    "settled_ledger_is_a_copy": Metric("gauge", (), "1 where the ledger is a copy, from which nothing is dispatched."),
    "settled_workers_live": Metric("gauge", (), "Workers that hold their lock."),
    "settled_worker_silent_seconds": Metric("gauge", (), "How long the live worker was not seen that was not seen for longest."),
    "settled_ledger_bytes": Metric("gauge", ("file",), "Size of the database and of its write-ahead log."),
    "settled_disk_free_bytes": Metric("gauge", (), "Free bytes on the ledger's disk for this user."),
    "settled_ledger_readable": Metric("gauge", (), "1 where the ledger could be read for this answer; else what comes from it is missing."),
}

# From this worker, since it started.
WORKER: Final[dict[str, Metric]] = {
    "settled_build_info": Metric("gauge", ("version",), "Always 1."),
    "settled_worker_start_time_seconds": Metric("gauge", (), "When this worker started, as seconds since 1970."),
    "settled_worker_last_tick_time_seconds": Metric("gauge", (), "When its loop came round last, as seconds since 1970."),
    "settled_worker_ready": Metric("gauge", (), "1 where it claims work: after its first good tick, the store writable, not draining."),
    "settled_handlers_running": Metric("gauge", (), "Attempts of this worker under way."),
    "settled_handlers_abandoned": Metric("gauge", (), "Attempts that were given up and whose code has not ended."),
    "settled_attempts_started_total": Metric("counter", ("contract",), "Attempts handed to a handler."),
    "settled_attempts_ended_total": Metric("counter", ("contract", "end"), "How attempts ended as far as this machine saw it."),
    "settled_outcomes_total": Metric("counter", ("contract", "status"), "Moves of operations into a status, recorded by this worker."),
    "settled_leases_lost_total": Metric("counter", ("contract",), "Attempts whose owner was found gone or silent."),
    "settled_runners_killed_total": Metric("counter", ("contract",), "Processes of handlers that were killed."),
    "settled_handler_seconds": Metric("histogram", ("contract",), "From the claim of an attempt to its end."),
    "settled_sweep_runs_total": Metric("counter", ("sweep",), "Runs of a sweep."),
    "settled_sweep_errors_total": Metric("counter", ("sweep",), "Runs that failed as a whole, and rows that a run left alone."),
    "settled_sweep_last_run_time_seconds": Metric("gauge", ("sweep",), "When a sweep ended last, as seconds since 1970."),
    "settled_log_lines_lost_total": Metric("counter", (), "Lines of the log that could not be written."),
}

METRICS: Final[dict[str, Metric]] = {**LEDGER, **WORKER}
OTHER: Final = "other"
BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds."""
