"""`settled simulate`: run the worker's own code under virtual time, from seeds, and show the shortest way to a violated invariant."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from settled_cli.invocation import Invocation, Leaf
from settled_cli.render import emit, write
from settled_cli.verdict import say
from settled_worker.testing.simulate import Failure, Simulated, log_of, simulate
from settled_worker.testing.simulate_checks import INVARIANTS

Told = Callable[[int, int], None]
_SEEDS_A_LINE = 100


@click.command("simulate", cls=Leaf)
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, help="How many runs.")
@click.option("--first", type=click.IntRange(0), default=1, show_default=True, metavar="SEED", help="The first seed.")
@click.option("--log", "shows_log", is_flag=True, help="Print the whole log of the first seed, and nothing else.")
@click.pass_context
def simulate_command(ctx: click.Context, seeds: int, first: int, shows_log: bool) -> None:
    """Play workers, runners, a provider, people and everything that can go wrong, step by step in one thread.

    Needs no ledger and touches none: it makes its own, and removes it. The same seed gives the same log, byte for byte. A
    violated invariant is told by its number, with its seed and the fewest steps that still violate it; exit 1 then.
    """
    invocation: Invocation = ctx.obj
    if shows_log:
        write("\n".join(log_of(first)) + "\n")
        return
    with _progress(seeds) as told:
        found = simulate(seeds, first=first, told=told)
    if invocation.for_programs:
        emit(invocation, found.to_json())
    else:
        write(_text(found))
    ctx.exit(1 if found.failures else 0)


def _text(found: Simulated) -> str:
    lines = [line for failure in found.failures for line in _told(failure)]
    lines.append(
        f"{found.seeds} seeds from {found.first}: {found.operations} operations, {found.events} events, {found.effects} effects, "
        f"{len(found.failures)} failed; digest of all logs {found.digest[:16]}"
    )
    return "\n".join(lines) + "\n"


def _told(failure: Failure) -> list[str]:
    head = f"seed {failure.seed} violates {failure.number}: {failure.text}"
    again = f"play it again: settled simulate --seeds 1 --first {failure.seed}"
    return [head, f"  {failure.number}: {INVARIANTS[failure.number]}", *(f"  {line}" for line in failure.shortest), again, ""]


@contextlib.contextmanager
def _progress(seeds: int) -> Iterator[Told]:
    """Show a bar on a terminal, and a line now and then elsewhere, on standard error."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda done, failed: say(f"{done} of {seeds} seeds, {failed} failed") if done % _SEEDS_A_LINE == 0 else None
        return
    from rich.console import Console  # only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    failed_so_far = TextColumn("{task.fields[failed]} failed")
    columns: Any = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), failed_so_far)
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("seeds", total=seeds, failed=0)
        yield lambda done, failed: progress.update(task, completed=done, failed=failed)
