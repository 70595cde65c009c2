"""The settings that exist, their types, limits and defaults.

A value that would switch a safeguard off (a lease of 0, an interval of no length) is refused, never understood as "none".
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from settled.config.cron import check_cron
from settled.config.endpoint import HttpSettings, MetricsSettings
from settled.config.escalation import EscalationSettings
from settled.config.values import Bytes, Count, DiskBytes, Seconds, Section, lower, pattern, share
from settled.core.limits import DEFAULTS, TERM_DEFAULTS
from settled.core.terms import seconds_us
from settled.core.too_many import UnknownLimit

BEATS_PER_LEASE_MIN: Final = 3  # so that two beats may be lost before an owner looks dead


def _reference(value: str | None, what: str) -> str | None:
    if value is not None and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", value):
        raise ValueError(f"is {value!r}, but must be {what}")
    return value


class WorkerSettings(Section):
    slots: Count = DEFAULTS.slots
    process_runners: Count | None = None
    """None: twice the cores, at most `process_runners_max` of the limits."""
    poll_seconds: Seconds = DEFAULTS.poll_seconds
    lease_seconds: Seconds = DEFAULTS.lease_seconds
    beat_seconds: Seconds = Field(default=DEFAULTS.beat_seconds, validate_default=True)
    abandoned_max: Count = DEFAULTS.abandoned_max
    batch_max: Count = DEFAULTS.batch_max
    drain_seconds: Seconds = DEFAULTS.drain_seconds
    hung_seconds: Seconds = DEFAULTS.hung_seconds
    """A loop or a sweep that does not come round for so long is taken for hung, and the worker ends itself."""

    @field_validator("beat_seconds")
    @classmethod
    def _beats_fit_the_lease(cls, beat_seconds: float, info: ValidationInfo) -> float:
        lease_seconds = info.data.get("lease_seconds")  # absent where it was refused itself
        if lease_seconds is not None and beat_seconds * BEATS_PER_LEASE_MIN > lease_seconds * (1 + 1e-9):
            raise ValueError(
                f"is {beat_seconds:g}, but must be at most a third of worker.lease_seconds ({lease_seconds:g}), "
                f"or a live owner looks dead after one late beat"
            )
        return beat_seconds


class SweepSettings(Section):
    """When one sweep runs: by interval or by crontab line in UTC."""

    every_seconds: Seconds | None = None
    cron: str | None = None
    enabled: bool = True

    @field_validator("cron")
    @classmethod
    def _cron_can_run(cls, line: str | None) -> str | None:
        return None if line is None else check_cron(line)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.every_seconds is None) == (self.cron is None):
            raise ValueError("needs either every_seconds or cron, and not both")
        return self


SWEEP_SECONDS: Final[Mapping[str, float]] = {
    "leases": DEFAULTS.leases_seconds,
    "reconcile": DEFAULTS.reconcile_late_max_seconds,
    "escalate": DEFAULTS.escalate_seconds,
    "checkpoint": DEFAULTS.checkpoint_seconds,
    "retention": DEFAULTS.retention_seconds,
}


class SweepsSettings(Section):
    leases: SweepSettings
    reconcile: SweepSettings
    escalate: SweepSettings
    checkpoint: SweepSettings
    retention: SweepSettings

    @model_validator(mode="before")
    @classmethod
    def _default_intervals(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        filled = dict(given)
        for name, seconds in SWEEP_SECONDS.items():
            sweep = filled.get(name, {})
            if isinstance(sweep, Mapping) and not {"every_seconds", "cron"} & sweep.keys():
                filled[name] = {**sweep, "every_seconds": seconds}
        return filled


class ContractSettings(Section):
    """What an operator may override of one contract without touching its code: how long and how often we ask, never what we believe."""

    probe_interval_seconds: Seconds | None = None
    probe_attempts_max: Count | None = None
    unknown_age_max_seconds: Seconds | None = None
    payload_seconds: Seconds | None = None
    """How long arguments and outputs are kept after the end. None: as `retention.payload_seconds` says."""
    unknown_open_max: Count | None = None
    """So many open unknown outcomes pause the contract until a person resumes it."""
    unknown_rate_max: Annotated[float, BeforeValidator(share)] | None = None
    """A larger share than this of the attempts that ended within the window pauses it, too."""
    unknown_rate_window_seconds: Seconds = 600.0
    unknown_rate_sample_min: Count = 20


def unknown_limits_of(contracts: Mapping[str, ContractSettings]) -> dict[str, UnknownLimit]:
    """Return the limits of the contracts that have one."""
    return {
        name: UnknownLimit(
            one.unknown_open_max, one.unknown_rate_max, seconds_us(one.unknown_rate_window_seconds), one.unknown_rate_sample_min
        )
        for name, one in contracts.items()
        if one.unknown_open_max is not None or one.unknown_rate_max is not None
    }


class RetentionSettings(Section):
    """What the retention sweep removes. Identity, fingerprint, events and chain stay for ever."""

    payload_seconds: Seconds | None = None
    """How long arguments and outputs are kept after the end. None: for ever."""
    incidents_seconds: Seconds = DEFAULTS.incidents_seconds
    """How long incidents are kept after they were closed, and what people were told of them. What is open or undelivered stays."""


class EncryptionSettings(Section):
    """Keys for arguments, metadata and outputs. Without any, texts are stored as they are."""

    keys_file: str | None = None
    """Lines of ID:KEY, the first encrypts. None: the credential `settled-keys` of the service manager, where there is one."""
    key_lines: str | None = Field(default=None, repr=False)
    """The same, with commas between, for the environment: SETTLED_ENCRYPTION__KEY_LINES. Handlers inherit it; a file is better."""


class LimitsSettings(Section):
    arguments_bytes_max: Bytes = DEFAULTS.arguments_bytes_max
    result_bytes_max: Bytes = DEFAULTS.result_bytes_max
    error_text_max: Count = DEFAULTS.error_text_max


class LogsSettings(Section):
    format: Annotated[Literal["auto", "json", "console"], BeforeValidator(lower)] = "auto"
    level: Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(lower)] = "info"


class HealthSettings(Section):
    """Beyond these, `settled health` is not healthy."""

    oldest_due_seconds: Seconds = 300.0
    oldest_unknown_seconds: Seconds = TERM_DEFAULTS.unknown_age_max
    worker_silent_seconds: Seconds = 3 * DEFAULTS.worker_row_seconds
    oldest_undelivered_seconds: Seconds = 300.0
    disk_free_bytes_min: DiskBytes = DEFAULTS.disk_free_bytes_min


class PeopleSettings(Section):
    """How long what people are asked stands, and who tells who they are."""

    proposal_expires_seconds: Seconds = DEFAULTS.proposal_expires_seconds
    approval_expires_seconds: Seconds = DEFAULTS.approval_expires_seconds
    authenticator: str | None = None
    """MODULE:FUNCTION that returns who acts now. None: the account of the operating system."""

    @field_validator("authenticator")
    @classmethod
    def _authenticator_is_a_reference(cls, value: str | None) -> str | None:
        return _reference(value, "MODULE:FUNCTION, for example shop.people:who_acts")


class Settings(BaseModel):
    """Everything that can be set. Built from values only: what is read from where is `load_settings`' business."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    database: str | None = None
    """A path or a URL. None: ./settled.db"""
    app: str | None = None
    """MODULE:APP"""
    worker: WorkerSettings = WorkerSettings()
    sweeps: SweepsSettings = SweepsSettings.model_validate({})
    contracts: dict[str, ContractSettings] = {}
    retention: RetentionSettings = RetentionSettings()
    encryption: EncryptionSettings = EncryptionSettings()
    limits: LimitsSettings = LimitsSettings()
    escalation: EscalationSettings = EscalationSettings()
    logs: LogsSettings = LogsSettings()
    health: HealthSettings = HealthSettings()
    http: HttpSettings = HttpSettings()
    metrics: MetricsSettings = MetricsSettings()
    two_person_risks: tuple[Literal["low", "medium", "high", "financial"], ...] = ()
    """Risks whose resolutions one person proposes and another one approves. Recommended: financial."""
    people: PeopleSettings = PeopleSettings()
    redactions: tuple[Annotated[re.Pattern[str], BeforeValidator(pattern)], ...] = ()
    """Regular expressions; what they match is masked in stored error text and in logs."""

    @field_validator("database")
    @classmethod
    def _database_is_named(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("is blank, but must be a path or a URL")
        return value

    @field_validator("app")
    @classmethod
    def _app_is_a_reference(cls, value: str | None) -> str | None:
        return _reference(value, "MODULE:APP, for example shop.effects:app")
