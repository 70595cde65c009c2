"""Drive incidents up their ladders, and put what is wanted into the queue of a channel, alone or in a digest.

Promise: nothing is sent here and no channel is asked, so that a dead one delays no sweep. Each write is one guarded step:
a restart neither repeats nor skips one, and two workers take it once.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from settled.config.escalation import DEFAULT_LADDER, LOG, EscalationSettings
from settled.core.ladder import Incident, Ladder, Route, Step, StormLimits, decide_climb, decide_route
from settled.core.moment import SECOND_US
from settled.core.terms import seconds_us
from settled.shell import Shell
from settled.steps.telling import Teller
from settled.store import incidents, outbox, unknowns
from settled.store.outbox import Wanted
from settled.store.transaction import Transaction

LOG_ONCE: Final = Ladder(DEFAULT_LADDER, (Step(0, LOG),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who is told when: the ladders of the settings, by what they are for."""

    default: Ladder = LOG_ONCE
    by_contract: Mapping[str, Ladder] = field(default_factory=dict)
    by_queue: Mapping[str, Ladder] = field(default_factory=dict)
    by_risk: Mapping[str, Ladder] = field(default_factory=dict)
    storm: StormLimits = field(default_factory=StormLimits)

    def ladder_for(self, incident: Incident) -> Ladder:
        """Return the ladder of an incident: that of its contract, else of its queue, else of its risk, else the default."""
        return (
            self.by_contract.get(incident.contract)
            or self.by_queue.get(incident.queue)
            or self.by_risk.get(incident.risk)
            or self.default
        )


class Escalated(NamedTuple):
    """How many incidents or notifications were looked at, and how many went on."""

    examined: int
    moved: int


def plan_of(settings: EscalationSettings) -> Plan:
    """Return the plan that the settings describe."""
    ladders = {
        name: Ladder(name, tuple(
            Step(seconds_us(step.after_seconds), step.channel, None if step.every_seconds is None else seconds_us(step.every_seconds))
            for step in one.steps
        ))
        for name, one in settings.ladders.items()
    }  # fmt: skip
    return Plan(
        default=ladders.get(DEFAULT_LADDER, LOG_ONCE),
        by_contract={contract: ladders[name] for name, one in settings.ladders.items() for contract in one.contracts},
        by_queue={queue: ladders[name] for name, one in settings.ladders.items() for queue in one.queues},
        by_risk={risk.value: ladders[name] for name, one in settings.ladders.items() for risk in one.risks},
        storm=StormLimits(settings.storm_count, round(settings.storm_window_seconds * SECOND_US)),
    )


def climb(shell: Shell, plan: Plan, now_us: int) -> Escalated:
    """Take the steps, and want the reminders, that are due; close what a resumed contract was paused for.

    Nothing of a copied ledger is told: the original tells it.
    """
    if shell.ledger.misplaced:
        return Escalated(0, 0)
    with shell.ledger.read() as transaction:
        if not incidents.find_due(transaction, now_us, 1) and not unknowns.any_resumed(transaction):
            return Escalated(0, 0)
    examined = moved = 0
    for _ in range(-(-shell.limits.digest_incidents_max // shell.limits.batch_max)):  # a storm climbs together, or it makes many digests
        with shell.ledger.write() as transaction:
            unknowns.close_resumed(transaction, now_us)
            due = incidents.find_due(transaction, now_us, shell.limits.batch_max)
            moved += sum(_climb_one(transaction, plan, one, now_us) for one in due)
        examined += len(due)
        if len(due) < shell.limits.batch_max:
            break
    return Escalated(examined, moved)


def _climb_one(transaction: Transaction, plan: Plan, incident: Incident, now_us: int) -> int:
    decided = decide_climb(incident, plan.ladder_for(incident), outbox.told_of(transaction, incident.id), now_us)
    if not incidents.climbed(transaction, incident, decided.taken, decided.due_us):
        return 0
    for step, number in decided.wants:
        outbox.want(transaction, incident.id, step=step, number=number, at_us=now_us)
    return len(decided.wants)


def route(shell: Shell, plan: Plan, redact: Callable[[str], str], now_us: int) -> Escalated:
    """Choose the channel and the text of what is wanted."""
    if shell.ledger.misplaced:
        return Escalated(0, 0)
    with shell.ledger.read() as transaction:
        if not outbox.find_wanted(transaction, now_us, 1):
            return Escalated(0, 0)
    with shell.ledger.write() as transaction:
        wanted = outbox.find_wanted(transaction, now_us, shell.limits.digest_incidents_max)
        waiting: dict[str, list[Wanted]] = {}
        for one in wanted:
            channel = _channel_now(transaction, plan, one, now_us)
            if channel is not None:
                waiting.setdefault(channel, []).append(one)
        teller = Teller(shell, redact)
        return Escalated(len(wanted), sum(_fill(transaction, plan, teller, *one, now_us) for one in waiting.items()))


def _channel_now(transaction: Transaction, plan: Plan, wanted: Wanted, now_us: int) -> str | None:
    """Return the channel of a notification that is to go out now; put others off, and withdraw what nobody needs any more."""
    incident, steps = wanted.incident, plan.ladder_for(wanted.incident).steps
    step = steps[wanted.step] if wanted.step < len(steps) else None
    opening = wanted.step == wanted.number == 0
    if step is not None and opening and step.after_us == 0:
        return step.channel  # what has happened is told even where it is over by now
    if step is None or incident.closed_us is not None or incident.acknowledged_us is not None:
        outbox.withdraw(transaction, wanted.id)
        return None
    not_before = max(incident.snoozed_us or 0, incident.opened_us + step.after_us if opening else 0)
    if not_before > now_us:
        outbox.put_off(transaction, wanted.id, not_before)
        return None
    return step.channel


def _fill(transaction: Transaction, plan: Plan, teller: Teller, channel: str, wanted: list[Wanted], now_us: int) -> int:
    traffic = outbox.traffic_of(transaction, channel, now_us - plan.storm.window_us)
    match decide_route(len(wanted), traffic, plan.storm, now_us):
        case Route.WAIT:
            for one in wanted:  # or what waits for a dead channel would stand before what others could have
                outbox.put_off(transaction, one.id, now_us + plan.storm.window_us)
            return 0
        case Route.SINGLY:
            for one in wanted:
                outbox.send_alone(transaction, one.id, channel, teller.about(one, now_us), now_us)
        case Route.DIGEST:
            delivery_id = secrets.token_hex(16)
            body = teller.about_all(delivery_id, wanted, now_us)
            outbox.send_together(transaction, [one.id for one in wanted], delivery_id, channel, body, now_us)
    return len(wanted)
