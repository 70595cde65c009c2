"""Search all states of a world, breadth first: the first way to a violation is a shortest one."""

from array import array
from collections.abc import Callable
from typing import NamedTuple

from tests.model.ledger import Violation
from tests.model.state import State
from tests.model.world import World


class Found(NamedTuple):
    """What a search came to. `violation` None: every reachable state was seen and is sound."""

    states: int
    steps: int
    violation: str | None
    trace: tuple[str, ...]
    complete: bool


def search(world: World, *, states_max: int, told: Callable[[int], None] | None = None) -> Found:
    """Search until a violation, the end, or `states_max`. Liveness is judged on the whole graph, so only of a complete search."""
    first = world.first()
    numbers: dict[State, int] = {first: 0}
    states = [first]
    came_from: list[tuple[int, str]] = [(-1, "")]
    sources, targets, kinds = array("I"), array("I"), bytearray()

    def way_to(number: int, *last: str) -> tuple[str, ...]:
        way = list(last)
        while number > 0:
            number, label = came_from[number]
            way.insert(0, label)
        return tuple(way)

    at = 0
    while at < len(states):
        if len(states) > states_max:
            return Found(len(states), len(targets), None, (), False)
        if told is not None and at % 4096 == 0:
            told(len(states))
        label = ""
        try:
            world.check(states[at])
            for label, kind, step in world.steps(states[at]):
                after = world.plain(step)
                number = numbers.get(after)
                if number is None:
                    number = numbers[after] = len(states)
                    states.append(after)
                    came_from.append((at, label))
                sources.append(at)
                targets.append(number)
                kinds.append(ord(kind[0]))
        except Violation as violation:
            return Found(len(states), len(targets), str(violation), way_to(at), True)
        at += 1
    stuck = _stuck(world, states, sources, targets, kinds)
    if stuck is not None:
        return Found(len(states), len(targets), stuck[0], way_to(stuck[1]), True)
    return Found(len(states), len(targets), None, (), True)


def _stuck(world: World, states: list[State], sources: "array[int]", targets: "array[int]", kinds: bytearray) -> tuple[str, int] | None:
    """Find a state from which nothing leads on: to an end or a person without one's help, and to an end with it."""
    back: list[list[int]] = [[] for _ in states]
    for edge, target in enumerate(targets):
        back[target].append(edge)

    def reached_from(goals: Callable[[State], bool], who: bytes) -> bytearray:
        seen = bytearray(goals(state) for state in states)
        todo = [number for number, is_goal in enumerate(seen) if is_goal]
        while todo:
            for edge in back[todo.pop()]:
                source = sources[edge]
                if not seen[source] and kinds[edge] in who:
                    seen[source] = 1
                    todo.append(source)
        return seen

    alone = reached_from(lambda state: world.is_over(state) or world.waits_for_a_person(state), b"s")
    helped = reached_from(world.is_over, b"swp")
    for text, seen in (("I4: stuck: neither settled nor before a person", alone), ("I4: never settled, even with a person", helped)):
        number = seen.find(0)
        if number >= 0:
            return text, number
    return None
