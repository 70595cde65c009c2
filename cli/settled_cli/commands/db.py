"""`settled db`: upgrade, check, back up, restore, adopt or read the ledger."""

from pathlib import Path

import click

from settled.store.creation import Journal
from settled.store.journal import set_journal
from settled.store.revisions import upgrade as upgrade_schema
from settled_cli.commands.audit import check as audit_check
from settled_cli.commands.data import backup, checkpoint, new_key_line, purge, rekey, restore
from settled_cli.invocation import Invocation, Verbs, usage_errors
from settled_cli.opening import ledger_file, missing, open_app
from settled_cli.render import emit
from settled_cli.sql_shell import run_shell
from settled_cli.workers import refuse_beside_others


@click.group(cls=Verbs)
def db() -> None:
    """Upgrade, check, back up, restore, adopt or read the ledger."""


@db.command()
@click.pass_obj
def upgrade(invocation: Invocation) -> None:
    """Bring the ledger's schema to this version. Only this command ever changes a schema."""
    path = _alone(invocation, "upgrade")
    before, after = upgrade_schema(path)
    emit(invocation, {"database": str(path), "before": before, "after": after, "changed": before != after})


@db.command()
@click.pass_context
def check(ctx: click.Context) -> None:
    """Recompute all that was recorded, and check the file. Exit 1 if anything is wrong."""
    audit_check(ctx)


@db.command()
@click.argument("mode", type=click.Choice(["wal", "delete"]))
@click.pass_obj
def journal(invocation: Invocation, mode: Journal) -> None:
    """Change the journal mode of a ledger that nobody has open."""
    path = _alone(invocation, "journal")
    had = set_journal(path, mode)
    emit(invocation, {"database": str(path), "before": had, "after": mode})


@db.command()
@click.option("--reason", required=True, help="Why this copy is the ledger from now on; kept with your user name.")
@click.option("--moved", is_flag=True, help="You assert that the old place was stopped first and is gone: rows stay as they are.")
@click.pass_obj
def adopt(invocation: Invocation, reason: str, moved: bool) -> None:
    """Take a copied or moved ledger over. Without --moved every unsettled operation becomes unknown: it may have been dispatched since."""
    _alone(invocation, "adopt")
    with usage_errors():
        marked = open_app(invocation).adopt(reason=reason, moved=moved)
    emit(invocation, {"adopted": True, "moved": moved, "restored": marked})


@db.command()
@click.option("--read-only", is_flag=True, help="Required: there is no other way to open a ledger by hand.")
@click.argument("sql", required=False)
@click.pass_context
def shell(ctx: click.Context, read_only: bool, sql: str | None) -> None:
    """Read the ledger with SQL: one statement, or one per line of standard input."""
    if not read_only:
        raise click.UsageError("only --read-only exists: nobody but settled writes to a ledger. Nothing was opened")
    path = ledger_file(ctx.obj)
    if not path.exists():
        raise missing(path)
    ctx.exit(run_shell(ctx.obj, path, sql))


def _alone(invocation: Invocation, verb: str) -> Path:
    """Return the ledger's path. Raises Refused beside a live worker or caller."""
    path = ledger_file(invocation)
    if not path.exists():
        raise missing(path)
    refuse_beside_others(invocation, path, verb)
    return path


for command in (backup, restore, purge, checkpoint, rekey, new_key_line):
    db.add_command(command)
