"""What happens in one simulated run: a list of small steps drawn from a seed, and how a failing list is made shorter.

Promise: a list of steps is all there is to a run. Each step means something whatever came before it, so that any part of a
list is a list, too, and the same list gives the same run.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

STEPS_MIN: Final = 20
STEPS_MAX: Final = 110
OPERATIONS: Final = 5
FIRST_OPERATIONS: Final = 3
WALL_FORWARD: Final = (30.0, 3600.0, 86_400.0)
WALL_STEPS: Final = (*WALL_FORWARD, -30.0, -3600.0)


class Step(NamedTuple):
    """One thing that happens. What `a` and `b` choose from depends on what is there at that moment."""

    what: str
    a: int = 0
    b: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.a} {self.b}"


# How often each thing is drawn. The first group is ordinary work, the second what goes wrong, the third what people and providers do.
_WEIGHTS: Final = {
    "advance": 11.0, "tick": 20.0, "sweep": 18.0, "go": 40.0, "start": 3.0,
    "kill": 1.5, "kill_at_commit": 2.0, "hang": 1.2, "resume": 2.0, "kill_runner": 1.5, "stall": 2.0, "wake": 1.0,
    "busy": 0.8, "full": 0.8, "sync_fails": 0.6,
    "lost_commit": 0.8, "wall": 0.6, "suspend": 0.4, "reboot": 0.4, "power_cut": 0.8,
    "person": 2.0, "stop": 0.8, "cancel": 0.6, "notice": 1.0,
}  # fmt: skip


def plan_of(seed: int) -> list[Step]:
    """Draw the steps of one run. Some operations come first, so that every later step has something to meet, the others anywhere.

    Faults end after few steps or after many: what is under way then is what the calm that follows must make good.
    """
    draw = random.Random(seed)
    names, weights = tuple(_WEIGHTS), tuple(_WEIGHTS.values())
    count = draw.randrange(STEPS_MIN, STEPS_MAX)
    planned = [Step(name, draw.randrange(1000), draw.randrange(1000)) for name in draw.choices(names, weights, k=count)]
    for number in range(OPERATIONS):
        at = 0 if number < FIRST_OPERATIONS else draw.randrange(count)
        planned.insert(at, Step("submit", draw.randrange(1000), draw.randrange(1000)))
    # A wall clock that falls back by much, and then a boot, leave nothing that bounds a key's window: docs/limits.md says so.
    boots = any(step.what in ("reboot", "power_cut") for step in planned)
    return [Step("wall", step.a % len(WALL_FORWARD)) if step.what == "wall" and boots else step for step in planned]


def shrink(steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool], *, tries_max: int = 400) -> list[Step]:
    """Return a shorter list that still fails: take out ever smaller pieces, as long as that helps (delta debugging)."""
    left, size, tries = list(steps), max(1, len(steps) // 2), 0
    while tries < tries_max:
        taken, at = False, 0
        while at < len(left) and tries < tries_max:
            shorter = left[:at] + left[at + size :]
            tries += 1
            if fails(shorter):
                left, taken = shorter, True
            else:
                at += size
        if not taken and size == 1:
            return left
        if not taken or size > len(left):
            size = max(1, size // 2)
    return left
