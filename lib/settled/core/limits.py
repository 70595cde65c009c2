"""Every default number of the project, once. docs/limits.md shows the same table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits and intervals in force. Times in microseconds end in `_us`, in seconds in `_seconds`."""

    slots: int = 32
    process_runners_max: int = 8
    abandoned_max: int = 32
    probe_slots: int = 8
    poll_seconds: float = 1.0
    lease_seconds: float = 30.0
    lease_looks: int = 3
    beat_seconds: float = 10.0
    worker_row_seconds: float = 60.0
    drain_seconds: float = 30.0
    hung_seconds: float = 60.0

    leases_seconds: float = 1.0
    reconcile_late_max_seconds: float = 1.0
    escalate_seconds: float = 15.0
    checkpoint_seconds: float = 60.0
    retention_seconds: float = 3600.0

    batch_max: int = 256
    list_default: int = 100
    list_max: int = 1000

    arguments_bytes_max: int = 1_048_576
    result_bytes_max: int = 1_048_576
    evidence_bytes_max: int = 65_536
    metadata_bytes_max: int = 65_536
    error_text_max: int = 500
    note_text_max: int = 2000
    name_max: int = 200
    operation_id_max: int = 500
    priority_max: int = 1000

    proposal_expires_seconds: float = 86_400.0
    approval_expires_seconds: float = 604_800.0

    busy_timeout_seconds: float = 5.0
    disk_free_bytes_min: int = 67_108_864
    http_connections_max: int = 8
    http_head_bytes_max: int = 8192
    http_seconds: float = 5.0
    textfile_seconds: float = 15.0
    metrics_contracts_max: int = 50
    wal_pages: int = 4000
    wal_bytes_max: int = 67_108_864
    purge_batches_max: int = 40
    inbox_seconds: float = 2_592_000.0
    incidents_seconds: float = 31_536_000.0
    sweep_history_max: int = 1000
    inbox_max: int = 10_000
    inbox_per_reference_max: int = 100

    tool_wait_seconds: float = 2.0
    tool_output_chars_max: int = 20_000
    mcp_wait_seconds: float = 30.0
    mcp_wait_seconds_max: float = 300.0
    mcp_progress_seconds: float = 1.0
    mcp_waits_max: int = 100
    mcp_sessions_max: int = 100
    mcp_request_bytes_max: int = 2_097_152
    delivery_seconds: float = 10.0
    delivery_seconds_max: float = 60.0
    delivery_retry_initial_seconds: float = 1.0
    delivery_retry_factor: float = 2.0
    delivery_retry_cap_seconds: float = 300.0
    escalation_poll_seconds: float = 1.0
    storm_count: int = 10
    storm_window_seconds: float = 60.0
    channel_queue_max: int = 100
    digest_incidents_max: int = 2000
    digest_named_max: int = 10
    notification_text_max: int = 200
    secret_bytes_max: int = 4096
    tool_name_max: int = 64
    plain_tries_max: int = 3
    breaker_failures_max: int = 3
    agent_steps_max: int = 200
    agent_turn_calls_max: int = 32


DEFAULTS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class TermDefaults:
    """What a contract means where it says nothing. Times in seconds."""

    version: str = "1"
    risk: str = "high"
    confirm_on: str = "return"
    timeout: float = 30.0
    kill_grace: float = 3.0
    network_drain: float = 120.0
    key_margin: float = 300.0
    probe_timeout: float = 10.0
    probe_attempts_max: int = 12
    unknown_age_max: float = 86_400.0
    max_attempts: int = 3
    not_sent_attempts_max: int = 10
    retry_initial: float = 1.0
    retry_factor: float = 2.0
    retry_cap: float = 300.0
    retry_jitter: float = 0.1
    probe_initial: float = 2.0
    probe_factor: float = 2.0
    probe_cap: float = 900.0
    probe_jitter: float = 0.1
    queue: str = "default"


TERM_DEFAULTS = TermDefaults()
