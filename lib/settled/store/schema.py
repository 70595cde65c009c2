"""The tables. Their CHECKs repeat the rules, so that no other program can break them unnoticed."""

from typing import Any, Final

import sqlalchemy as sa

from settled.core.incidents import IncidentKind
from settled.core.words import Status

NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = sa.MetaData(naming_convention=NAMING)

_KINDS: Final = ", ".join(f"'{kind.value}'" for kind in IncidentKind)


def any_of(*statuses: Status, of: str = "status") -> str:
    """Return the condition that the column `of` is one of `statuses`.

    Compared one by one: for an IN of more than two SQLite makes a table of its own, for each row that is written and each condition.
    """
    return "(" + " OR ".join(f"{of} = '{status.value}'" for status in statuses) + ")"


_UNTOUCHED: Final = (
    "attempt > 0 OR coalesce(settled_by, '') = 'operator' OR " + any_of(Status.PREPARED, Status.CANCELLED, Status.QUARANTINED)
)
_STRICT: Final[dict[str, Any]] = {"sqlite_strict": True}


def _big(name: str, *, nullable: bool = False, **more: Any) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=nullable, **more)


def _text(name: str, *, nullable: bool = False, **more: Any) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable, **more)


operation = sa.Table(
    "operation",
    metadata,
    _big("id", primary_key=True, autoincrement=True),
    _text("operation_id", unique=True),
    _text("contract"),
    _text("contract_version", nullable=True),
    _text("queue"),
    _text("risk"),
    sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
    _text("provider_key", nullable=True),
    _text("provider_reference", nullable=True),
    _big("derived"),
    _big("priority"),
    _big("deadline_us", nullable=True),
    _big("created_us"),
    _text("status"),
    _text("reason", nullable=True),
    _big("due_us", nullable=True),
    _big("attempt"),
    _big("version"),
    _big("sequence"),
    _big("open_attempts"),
    _big("unfenced"),
    _big("kept"),
    _big("lease_owner", nullable=True),
    _big("terms", nullable=True),
    _big("probes_spent"),
    _big("unknown_since_us", nullable=True),
    _big("escalate_us", nullable=True),
    _text("settled_by", nullable=True),
    _text("provider_operation_id", nullable=True),
    _big("duplicate_suspected"),
    _big("output_part", nullable=True),
    _text("error", nullable=True),
    _big("updated_us"),
    sa.Column("chain", sa.LargeBinary(), nullable=False),
    _big("probe_owner", nullable=True),
    sa.CheckConstraint(any_of(*Status), name="status_known"),
    sa.CheckConstraint("(status = 'dispatched') = (lease_owner IS NOT NULL)", name="lease_only_while_dispatched"),
    sa.CheckConstraint("status NOT IN ('rejected', 'cancelled') OR open_attempts = 0", name="failed_only_when_closed"),
    sa.CheckConstraint(_UNTOUCHED, name="outcome_only_after_an_attempt"),
    sa.CheckConstraint("status <> 'quarantined' OR reason IS NOT NULL", name="quarantine_has_a_reason"),
    sa.CheckConstraint("attempt > 0 OR open_attempts = 0", name="open_only_after_an_attempt"),
    sa.CheckConstraint("kept = 0 OR status = 'dispatched'", name="kept_only_while_dispatched"),
    sa.CheckConstraint("attempt >= 0 AND version >= 1 AND sequence >= 1 AND probes_spent >= 0", name="counts_natural"),
    sa.CheckConstraint("open_attempts BETWEEN 0 AND attempt AND unfenced BETWEEN 0 AND open_attempts", name="open_bounded"),
    sa.CheckConstraint("duplicate_suspected IN (0, 1) AND derived IN (0, 1)", name="flags"),
    **_STRICT,
)

# Partial, so that a claim and a sweep cost the same however long the settled history is.
_PREPARED = sa.text("status = 'prepared' AND reason IS NULL")
_UNKNOWN = sa.text("due_us IS NOT NULL AND status IN ('outcome_unknown', 'quarantined')")
_ESCALATE = sa.text("escalate_us IS NOT NULL AND status = 'outcome_unknown'")
_DEADLINE = sa.text("deadline_us IS NOT NULL AND status = 'prepared'")
_LEASED = sa.text("status = 'dispatched'")
_UNFENCED = sa.text("unfenced > 0 AND " + any_of(Status.PREPARED, Status.OUTCOME_UNKNOWN, Status.QUARANTINED))
_UNDERIVED = sa.text("derived = 0 AND status = 'prepared' AND reason IS NULL")
_REOPENED = sa.text("open_attempts > 0 AND status = 'prepared' AND reason IS NULL")


def _partial(name: str, where: sa.TextClause, *columns: Any, unique: bool = False) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, sqlite_where=where, info={"where": where})


def tell_partial(dialect_name: str) -> None:
    """Tell another dialect which rows the partial indexes cover, before it makes them.

    Not said at once: to name a dialect in an index imports the whole of it, and every program that submits would wait for that.
    """
    for table in metadata.tables.values():
        for index in table.indexes:
            if "where" in index.info:
                index.dialect_options[dialect_name]["where"] = index.info["where"]


_c = operation.c
_partial("ix_operation_ready", _PREPARED, _c.contract, _c.priority.desc(), _c.due_us, _c.id)
_partial("ix_operation_probe_due", _UNKNOWN, _c.contract, _c.due_us, _c.id)
_partial("ix_operation_escalate", _ESCALATE, _c.escalate_us)
_partial("ix_operation_deadline", _DEADLINE, _c.deadline_us)
_partial("ix_operation_leased", _LEASED, _c.lease_owner, _c.id)
_partial("ix_operation_unfenced", _UNFENCED, _c.id)
_partial("ix_operation_abandoned", _UNFENCED, _c.contract)
_partial("ix_operation_underived", _UNDERIVED, _c.contract, _c.due_us, _c.id)
_partial("ix_operation_reopened", _REOPENED, _c.contract, _c.id)
_partial("ix_operation_unknown", sa.text("status IN ('outcome_unknown', 'quarantined')"), _c.contract, _c.unknown_since_us)
_partial("ix_operation_probed", sa.text("probe_owner IS NOT NULL"), _c.probe_owner)
_partial("ix_operation_reference", sa.text("provider_reference IS NOT NULL"), _c.provider_reference)
sa.Index("ix_operation_listed", _c.status, _c.updated_us)

# Arguments are part 0, metadata part -1, an output has the sequence of the event that brought it.
payload = sa.Table(
    "payload",
    metadata,
    _big("operation", primary_key=True, autoincrement=False),
    _big("part", primary_key=True, autoincrement=False),
    _text("body"),
    sqlite_with_rowid=False,
    **_STRICT,
)

event = sa.Table(
    "event",
    metadata,
    _big("operation", primary_key=True, autoincrement=False),
    _big("sequence", primary_key=True, autoincrement=False),
    _text("type"),
    _text("status"),
    _big("attempt"),
    _big("at_us"),
    _text("data", nullable=True),
    sa.Column("hash", sa.LargeBinary(), nullable=False),
    _big("seal"),
    sqlite_with_rowid=False,
    **_STRICT,
)

_partial("ix_event_proposed", sa.text("type = 'proposed'"), event.c.operation)

seal = sa.Table(
    "seal",
    metadata,
    _big("id", primary_key=True, autoincrement=False),
    _big("at_us"),
    _big("events"),
    sa.Column("head", sa.LargeBinary(), nullable=False),
    **_STRICT,
)

terms = sa.Table(
    "terms",
    metadata,
    _big("id", primary_key=True, autoincrement=True),
    _text("digest", unique=True),
    _text("body"),
    **_STRICT,
)

worker = sa.Table(
    "worker",
    metadata,
    _big("id", primary_key=True, autoincrement=True),
    _text("incarnation", unique=True),
    _text("kind"),
    _text("boot_id"),
    _big("pid"),
    _big("process_started"),
    _big("pid_namespace"),
    _text("lock_path"),
    _big("lock_device"),
    _big("lock_inode"),
    _text("cgroup", nullable=True),
    _text("contracts"),
    _big("started_us"),
    _big("seen_us"),
    _big("ended_us", nullable=True),
    sa.CheckConstraint("kind IN ('worker', 'caller', 'sweep')", name="kind_known"),
    **_STRICT,
)
_partial("ix_worker_live", sa.text("ended_us IS NULL"), worker.c.id)

tally = sa.Table(
    "tally",
    metadata,
    _text("contract", primary_key=True),
    _text("status", primary_key=True),
    _big("count"),
    sqlite_with_rowid=False,
    **_STRICT,
)

sweep_run = sa.Table(
    "sweep_run",
    metadata,
    _big("id", primary_key=True, autoincrement=True),
    _text("name"),
    _big("started_us"),
    _big("ended_us"),
    _big("examined"),
    _big("moved"),
    _big("errors"),
    _text("note", nullable=True),
    sa.Index("ix_sweep_run_name", "name", "id"),
    **_STRICT,
)

evidence_inbox = sa.Table(
    "evidence_inbox",
    metadata,
    _big("id", primary_key=True, autoincrement=True),
    _text("provider_reference", index=True),
    _text("source"),
    _big("at_us"),
    _text("body"),
    **_STRICT,
)

# What people, or settled itself, hold back from dispatch. Lifted rows stay: they are the record of who did it and why.
pause = sa.Table(
    "pause",
    metadata,
    _big("id", primary_key=True, autoincrement=True),
    _text("scope"),
    _text("name"),
    _text("reason"),
    _text("actor"),
    _text("os_user"),
    _text("principal"),
    _big("at_us"),
    _big("lifted_us", nullable=True),
    _text("lifted_by", nullable=True),
    _text("lifted_os_user", nullable=True),
    _text("lifted_principal", nullable=True),
    _text("lifted_reason", nullable=True),
    sa.CheckConstraint("scope IN ('all', 'contract', 'queue') AND (scope = 'all') = (name = '')", name="scope_known"),
    sa.CheckConstraint(
        "(lifted_us IS NULL) = (lifted_by IS NULL) AND (lifted_us IS NULL) = (lifted_reason IS NULL)", name="lifted_by_somebody"
    ),
    **_STRICT,
)
_partial("ix_pause_active", sa.text("lifted_us IS NULL"), pause.c.scope, pause.c.name)

# One open incident of a kind for each operation; incidents of a whole contract name no operation. `taken` counts ladder steps.
incident = sa.Table(
    "incident",
    metadata,
    _big("id", primary_key=True, autoincrement=True),
    _big("operation", nullable=True),
    _text("contract"),
    _text("queue"),
    _text("risk"),
    _text("kind"),
    _text("reason"),
    _big("opened_us"),
    _big("taken"),
    _big("due_us", nullable=True),
    _big("acknowledged_us", nullable=True),
    _text("acknowledged_by", nullable=True),
    _text("assigned_to", nullable=True),
    _big("snoozed_us", nullable=True),
    _big("closed_us", nullable=True),
    _text("closed_by", nullable=True),
    sa.CheckConstraint(f"kind IN ({_KINDS})", name="kind_known"),
    sa.CheckConstraint("closed_us IS NULL OR due_us IS NULL", name="closed_is_quiet"),
    sa.CheckConstraint("acknowledged_us IS NULL OR due_us IS NULL", name="acknowledged_is_quiet"),
    **_STRICT,
)
_i = incident.c
_OPEN = sa.text("closed_us IS NULL")
_partial("uq_incident_open", _OPEN, _i.operation, _i.kind, unique=True)
_partial("ix_incident_open", _OPEN, _i.opened_us)
_partial("ix_incident_due", sa.text("due_us IS NOT NULL"), _i.due_us)
_partial("ix_incident_operation", sa.text("operation IS NOT NULL"), _i.operation)
_partial("ix_incident_closed", sa.text("closed_us IS NOT NULL"), _i.closed_us)
sa.Index("ix_incident_contract", _i.contract, _i.kind, _i.opened_us)

# How many attempts of a contract ended within a short time, and how many of them lost their outcome; only where a limit is set.
end_count = sa.Table(
    "end_count",
    metadata,
    _text("contract", primary_key=True),
    _big("bucket_us", primary_key=True, autoincrement=False),
    _big("ended"),
    _big("lost"),
    sqlite_with_rowid=False,
    **_STRICT,
)

# The outbox. `wanted`: no channel is chosen yet; `grouped`: a digest speaks of it; `sending`: its owner has it in hand.
notification = sa.Table(
    "notification",
    metadata,
    _big("id", primary_key=True, autoincrement=True),
    _text("delivery_id", unique=True),
    _big("incident", nullable=True),
    _big("step"),
    _big("number"),
    _text("kind"),
    _text("state"),
    _text("channel", nullable=True),
    _big("digest", nullable=True),
    _big("created_us"),
    _big("due_us"),
    _big("attempts"),
    _big("owner", nullable=True),
    _big("delivered_us", nullable=True),
    _text("body", nullable=True),
    _text("error", nullable=True),
    sa.CheckConstraint("kind IN ('incident', 'reminder', 'digest')", name="kind_known"),
    sa.CheckConstraint("state IN ('wanted', 'grouped', 'pending', 'sending', 'delivered', 'withdrawn')", name="state_known"),
    sa.CheckConstraint("(state = 'sending') = (owner IS NOT NULL)", name="owned_while_sending"),
    sa.CheckConstraint("state NOT IN ('pending', 'sending') OR (channel IS NOT NULL AND body IS NOT NULL)", name="routed_before_sent"),
    sa.CheckConstraint("(state = 'delivered') = (delivered_us IS NOT NULL)", name="delivered_at"),
    **_STRICT,
)
_n = notification.c
_TOLD = sa.text("incident IS NOT NULL")
_partial("uq_notification_once", _TOLD, _n.incident, _n.step, _n.number, unique=True)
_partial("ix_notification_wanted", sa.text("state = 'wanted'"), _n.due_us, _n.id)
_partial("ix_notification_undelivered", sa.text("state IN ('wanted', 'pending', 'sending')"), _n.channel, _n.due_us, _n.id)
_partial("ix_notification_sending", sa.text("state = 'sending'"), _n.owner)
_partial("ix_notification_digest", sa.text("digest IS NOT NULL"), _n.digest)
_partial("ix_notification_told_together", sa.text("kind = 'digest' AND state = 'delivered'"), _n.delivered_us)
sa.Index("ix_notification_recent", _n.channel, _n.kind, _n.created_us)

# The runs of the reference runtime for agents. Texts of the run (task, arguments, results, output) pass the codec; events hold none.
agent_run = sa.Table(
    "agent_run",
    metadata,
    _text("run_id", primary_key=True),
    _text("task"),
    _text("task_fingerprint"),
    _text("state"),
    _text("reason", nullable=True),
    _big("turn"),
    _big("version"),
    _text("output", nullable=True),
    _big("created_us"),
    _big("updated_us"),
    sa.CheckConstraint("state IN ('running', 'waiting', 'completed', 'failed')", name="state_known"),
    sa.CheckConstraint("state <> 'failed' OR reason IS NOT NULL", name="failure_has_a_reason"),
    sa.CheckConstraint("turn >= 0 AND version >= 1", name="counts_natural"),
    sa.Index("ix_agent_run_state", "state", "updated_us"),
    sqlite_with_rowid=False,
    **_STRICT,
)

agent_step = sa.Table(
    "agent_step",
    metadata,
    _text("run_id", primary_key=True),
    _big("number", primary_key=True, autoincrement=False),
    _big("turn"),
    _text("tool"),
    _text("call_id", nullable=True),
    _text("arguments"),
    _text("fingerprint"),
    _text("operation_id", nullable=True),
    _text("status", nullable=True),
    _big("done"),
    _text("result", nullable=True),
    _big("updated_us"),
    sa.CheckConstraint("done IN (0, 1) AND (done = 0 OR status IS NOT NULL)", name="done_has_a_status"),
    sqlite_with_rowid=False,
    **_STRICT,
)

agent_event = sa.Table(
    "agent_event",
    metadata,
    _text("run_id", primary_key=True),
    _big("sequence", primary_key=True, autoincrement=False),
    _text("type"),
    _big("step", nullable=True),
    _text("tool", nullable=True),
    _text("fingerprint", nullable=True),
    _text("operation_id", nullable=True),
    _text("status", nullable=True),
    _text("actor", nullable=True),
    _big("at_us"),
    sqlite_with_rowid=False,
    **_STRICT,
)

meta = sa.Table("meta", metadata, _text("key", primary_key=True), _text("value"), sqlite_with_rowid=False, **_STRICT)

# No program may rewrite history through this schema; the chain finds those that go around it.
_FIXED: Final = " OR ".join(f"NEW.{name} <> OLD.{name}" for name in ("scope", "name", "reason", "actor", "os_user", "principal", "at_us"))
APPEND_ONLY: Final = (
    *(
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        for table in ("event", "seal")
        for verb in ("UPDATE", "DELETE")
    ),
    # An old run goes whole, so that its events may be deleted.
    "CREATE TRIGGER agent_event_no_update BEFORE UPDATE ON agent_event BEGIN SELECT RAISE(ABORT, 'agent_event is append-only'); END",
    "CREATE TRIGGER pause_no_delete BEFORE DELETE ON pause BEGIN SELECT RAISE(ABORT, 'pause is append-only'); END",
    f"CREATE TRIGGER pause_lifted_once BEFORE UPDATE ON pause WHEN OLD.lifted_us IS NOT NULL OR {_FIXED} "
    "BEGIN SELECT RAISE(ABORT, 'a pause is lifted once, and stays as it was'); END",
)
