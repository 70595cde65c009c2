"""Say what is wrong with a ledger and its workers now, each in one sentence, with the entry of the runbook that answers it."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from settled.config.settings import HealthSettings
from settled.core.moment import SECOND_US
from settled.steps.pausing import ITSELF
from settled_cli.survey import Survey

RUNBOOK: Final = "docs/operate/runbook.md"


class Ailment(NamedTuple):
    """`entry` is the anchor of the runbook's entry."""

    problem: str
    entry: str

    @property
    def see(self) -> str:
        """Where to read on."""
        return f"{RUNBOOK}#{self.entry}"


def disk_is_short(path: str, free_bytes: int, limits: HealthSettings) -> Iterator[Ailment]:
    """Yield what is wrong with the disk of a ledger."""
    if free_bytes < limits.disk_free_bytes_min:
        yield Ailment(f"the disk of {path} has only {free_bytes} bytes free", "the-disk-is-full-or-nearly-so")


def ailments(seen: Survey, limits: HealthSettings) -> Iterator[Ailment]:
    """Yield what is wrong now."""
    yield from _of_workers(seen, limits)
    yield from _of_work(seen, limits)
    if seen.restored:
        what = "the ledger is a copy, or was moved (restored): nothing is dispatched from it until settled db adopt"
        yield Ailment(what, "the-ledger-is-a-copy")
    yield from (Ailment(str(one), "something-is-paused") for one in seen.paused if one.actor == ITSELF)
    for one in seen.undelivered:
        age = (seen.now_us - one.oldest_us) / SECOND_US
        if age > limits.oldest_undelivered_seconds:
            where = f"channel {one.channel} has" if one.channel else "no worker has routed"
            why = f": {one.error}" if one.error else ""
            what = f"{where} {one.notifications} notifications undelivered, the oldest for {age:.0f} s{why}"
            yield Ailment(what, "notifications-are-not-delivered")


def _of_workers(seen: Survey, limits: HealthSettings) -> Iterator[Ailment]:
    silent_us = limits.worker_silent_seconds * SECOND_US
    silent = [one for one in seen.workers if seen.now_us - one.seen_us > silent_us]
    entry = "no-worker-lives-or-it-is-silent"
    if not seen.workers:
        yield Ailment("no worker lives", entry)
    elif len(silent) == len(seen.workers):
        yield Ailment(f"no worker was seen for {limits.worker_silent_seconds:g} s", entry)
    else:
        for one in silent:
            yield Ailment(f"the worker with pid {one.pid} was not seen for {(seen.now_us - one.seen_us) / SECOND_US:.0f} s", entry)
    swept = seen.sweeps.get("leases")
    if seen.workers and swept is not None and seen.now_us - swept.ended_us > silent_us:
        yield Ailment(f"no sweep has ended for {limits.worker_silent_seconds:g} s although a worker lives", entry)
    if seen.refused:
        what = f"handlers of {', '.join(seen.refused)} hang, and a worker claims no more of them (abandoned_limit)"
        yield Ailment(what, "work-is-overdue")


def _of_work(seen: Survey, limits: HealthSettings) -> Iterator[Ailment]:
    due = seen.due_seconds
    if due is not None and due > limits.oldest_due_seconds:
        held = f"; {'; '.join(map(str, seen.paused))}" if seen.paused else ""
        yield Ailment(f"an operation has been due for {due:.0f} s (limit {limits.oldest_due_seconds:g}){held}", "work-is-overdue")
    unknown, entry = seen.unknown_seconds, "an-outcome-has-been-unknown-for-too-long"
    if unknown is not None and unknown > limits.oldest_unknown_seconds:
        yield Ailment(f"an outcome has been unknown for {unknown:.0f} s (limit {limits.oldest_unknown_seconds:g})", entry)
    if seen.overdue is not None:
        yield Ailment(f"{seen.overdue} is unknown for longer than its contract allows", entry)
