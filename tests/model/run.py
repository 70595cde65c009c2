"""Search every setting, and every mutation of the protocol: `python -m tests.model.run`, or `make model`.

Exits 0 when every setting is sound and every mutation is caught, 1 otherwise. The seconds are of the processor, not of the clock.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.model.mutations import MUTATIONS
from tests.model.search import Found, search
from tests.model.setting import Setting
from tests.model.settings import SETTINGS
from tests.model.world import World

STATES_MAX: Final = 1_000_000


class Line(NamedTuple):
    """One row of the result."""

    kind: str
    name: str
    found: Found
    good: bool
    cpu_seconds: float


def search_setting(number: int) -> Line:
    """Search one setting; good where all its states were seen and none is unsound."""
    one = SETTINGS[number]
    found = search(World(one), states_max=STATES_MAX)
    return Line("setting", described(one), found, found.complete and found.violation is None, time.process_time())


def search_mutation(number: int) -> Line:
    """Search with one rule taken out; good where that is found."""
    mutation = MUTATIONS[number]
    with mutation.applied() as world:
        found = search(world, states_max=STATES_MAX)
    caught = bool(found.violation and found.violation.startswith(mutation.caught))
    return Line("mutation", mutation.name, found, caught, time.process_time())


def described(one: Setting) -> str:
    """Say a setting by its name and what differs from the defaults."""
    plain = Setting(name=one.name, isolation=one.isolation, probe=one.probe, key=one.key)
    differs = {name: value for name, value in vars_of(one).items() if value != vars_of(plain)[name]}
    return ", ".join([one.name, *(f"{name} {value}" for name, value in differs.items())])


def vars_of(one: Setting) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Setting.__dataclass_fields__}


def lines() -> Iterator[Line]:
    """Search all, two at a time, each in a process of its own: a mutation must not be met by another search."""
    with ProcessPoolExecutor(2, max_tasks_per_child=1) as pool:
        yield from pool.map(search_setting, range(len(SETTINGS)))
        yield from pool.map(search_mutation, range(len(MUTATIONS)))


def show(results: Iterable[Line], console: Console) -> list[Line]:
    """Print a table as the results come, with the way to each surprise."""
    table = Table("", "searched", "states", "steps", "CPU s", "found", box=None)
    done = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("searching", total=len(SETTINGS) + len(MUTATIONS))
        for line in results:
            progress.advance(task)
            done.append(line)
            found = line.found.violation or ("nothing" if line.found.complete else "incomplete")
            way = f" in {len(line.found.trace)} steps" if line.found.violation else ""
            counts = (f"{line.found.states:,}", f"{line.found.steps:,}", f"{line.cpu_seconds:.1f}")
            table.add_row("ok" if line.good else "BAD", line.name, *counts, found + way)
    console.print(table)
    for line in done:
        if not line.good:
            console.print(f"\n{line.name}: {line.found.violation or 'not all states were searched'}")
            console.print("\n".join(f"  {number:2} {step}" for number, step in enumerate(line.found.trace, 1)))
    return done


def main(arguments: list[str]) -> int:
    console = Console(soft_wrap=True, highlight=False)
    done = show(lines(), console)
    total = sum(line.found.states for line in done)
    bad = sum(not line.good for line in done)
    spent = sum(line.cpu_seconds for line in done)
    searched = f"{total:,} states in {len(SETTINGS)} settings and {len(MUTATIONS)} mutations, {spent:.0f} seconds of the processor"
    console.print(f"\n{searched}; {bad} of them not as they must be")
    if arguments:
        with open(arguments[0], "w", encoding="utf-8") as file:
            json.dump([{**one._asdict(), "found": one.found._asdict()} for one in done], file, indent=1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
