"""What settings change of contracts: how long and how often we ask, how long texts are kept; never what we believe."""

from settled.config.settings import Settings
from settled.steps.retain import Retention


def overrides_of(settings: Settings) -> dict[str, dict[str, float | int]]:
    """Return what settings change of the terms of each contract, by the names of Terms."""
    changes: dict[str, dict[str, float | int]] = {}
    for name, chosen in settings.contracts.items():
        change: dict[str, float | int] = {}
        if chosen.probe_interval_seconds is not None:
            interval_us = round(chosen.probe_interval_seconds * 1_000_000)
            change |= {"probe_initial_us": interval_us, "probe_cap_us": interval_us, "probe_factor": 1.0}
        if chosen.probe_attempts_max is not None:
            change["probe_attempts_max"] = chosen.probe_attempts_max
        if chosen.unknown_age_max_seconds is not None:
            change["unknown_age_max_us"] = round(chosen.unknown_age_max_seconds * 1_000_000)
        changes[name] = change
    return changes


def retention_of(settings: Settings) -> Retention:
    """Return how long the settings keep the texts of settled operations, and incidents: at least as long as storms are counted."""
    own = {name: chosen.payload_seconds for name, chosen in settings.contracts.items() if chosen.payload_seconds is not None}
    kept = max(settings.retention.incidents_seconds, settings.escalation.storm_window_seconds)
    return Retention(payload_seconds=settings.retention.payload_seconds, contracts=own, incidents_seconds=kept)
