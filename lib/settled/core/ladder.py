"""Which step of a ladder an incident has reached, and whether a notification goes out alone or in a digest.

Promise: each step is wanted once however often this is asked, a reminder never while the one before it is undelivered, and
a storm becomes a bounded number of notifications.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from settled.core.limits import DEFAULTS
from settled.core.moment import SECOND_US


class Step(NamedTuple):
    """One step: how long after the opening, through which channel, and how often again; None = not again."""

    after_us: int
    channel: str
    every_us: int | None = None


class Ladder(NamedTuple):
    """A named ladder; its steps by their delay. A step of an earlier settings file that it no longer has is never taken again."""

    name: str
    steps: tuple[Step, ...]


class Incident(NamedTuple):
    """One incident as it is stored. `taken` counts the steps that were wanted; `due_us` is when to look again, None = not."""

    id: int
    operation: int | None
    contract: str
    queue: str
    risk: str
    kind: str
    reason: str
    opened_us: int
    taken: int
    due_us: int | None
    acknowledged_us: int | None
    acknowledged_by: str | None
    assigned_to: str | None
    snoozed_us: int | None
    closed_us: int | None
    closed_by: str | None


class Told(NamedTuple):
    """What was wanted of one step so far: how many notifications, when last, and whether that one has arrived."""

    wanted: int
    last_us: int
    arrived: bool


class Climb(NamedTuple):
    """The notifications that are wanted now, as (step, number), how many steps are taken then, and when to look again."""

    wants: tuple[tuple[int, int], ...]
    taken: int
    due_us: int | None


def decide_climb(incident: Incident, ladder: Ladder, told: Mapping[int, Told], now_us: int) -> Climb:
    """Decide for an open incident that nobody has acknowledged and whose snooze, if any, is over."""
    wants: list[tuple[int, int]] = []
    upcoming: list[int] = []
    taken = incident.taken
    for number, step in enumerate(ladder.steps):
        at_us = incident.opened_us + step.after_us
        if number < incident.taken:
            before = told.get(number, Told(1, at_us, True))
        elif at_us <= now_us:
            before = Told(1, now_us, False)
            wants.append((number, 0))
            taken = number + 1
        else:
            upcoming.append(at_us)
            break
        if step.every_us is None:
            continue
        again_us = max(before.last_us, at_us) + step.every_us
        if again_us > now_us:
            upcoming.append(again_us)
        else:
            upcoming.append(now_us + step.every_us)
            if before.arrived:
                wants.append((number, before.wanted))
    if incident.snoozed_us is not None and not wants and ladder.steps and taken:
        last = min(taken, len(ladder.steps)) - 1  # a person asked to be told again now
        wants.append((last, told[last].wanted if last in told else 1))
    return Climb(tuple(wants), taken, min(upcoming, default=None))


class Route(Enum):
    """How what is wanted of a channel goes out."""

    SINGLY = "singly"
    DIGEST = "digest"
    WAIT = "wait"


class Traffic(NamedTuple):
    """What a channel has had: single notifications within the last window, its queue, its last digest and whether it is still queued."""

    singles: int
    queued: int
    last_digest_us: int | None
    digest_queued: bool


class StormLimits(NamedTuple):
    """More than `singles_max` notifications of a channel within `window_us` go out together; so does what a full queue cannot take."""

    singles_max: int = DEFAULTS.storm_count
    window_us: int = round(DEFAULTS.storm_window_seconds * SECOND_US)
    queue_max: int = DEFAULTS.channel_queue_max


def decide_route(waiting: int, traffic: Traffic, limits: StormLimits, now_us: int) -> Route:
    """Decide for `waiting` wanted notifications of one channel. After a digest nothing goes out for one window."""
    if traffic.digest_queued:
        return Route.WAIT
    if traffic.last_digest_us is not None and 0 <= now_us - traffic.last_digest_us < limits.window_us:
        return Route.WAIT
    if traffic.singles + waiting > limits.singles_max or traffic.queued + waiting > limits.queue_max:
        return Route.DIGEST
    return Route.SINGLY
