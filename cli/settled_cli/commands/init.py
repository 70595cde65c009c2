"""`settled init`: make the ledger."""

import click

from settled.clock import SystemClock
from settled.store.creation import Journal, create_ledger
from settled_cli.invocation import Invocation, Leaf
from settled_cli.opening import ledger_file
from settled_cli.render import emit
from settled_cli.verdict import say


@click.command(cls=Leaf)
@click.option("--group", metavar="G", help="Share the ledger with the members of this group.")
@click.option("--journal", type=click.Choice(["wal", "delete"]), help="The journal mode. Default: WAL where this SQLite is safe.")
@click.pass_obj
def init(invocation: Invocation, group: str | None, journal: Journal | None) -> None:
    """Create the ledger, private to its owner. An existing ledger is left as it is."""
    made = create_ledger(ledger_file(invocation), group=group, journal=journal, at_us=SystemClock().now().wall_us)
    answer = {"database": str(made.path), "created": made.created, "journal_mode": made.journal_mode}
    emit(invocation, answer)
    given = [f"--{name}" for name, value in (("group", group), ("journal", journal)) if value is not None]
    if given and not made.created:
        say(f"the ledger was there already and was left as it is: {' and '.join(given)} changed nothing")
