"""`settled audit`: verify the chain of events, print its head, export what an outside auditor needs."""

import re
from typing import Final

import click

from settled.store.audit import Finding
from settled.store.audit import head as audit_head
from settled.store.audit import verify as audit_verify
from settled.store.audit_export import export as audit_export
from settled_cli.invocation import Invocation, Verbs
from settled_cli.opening import open_app
from settled_cli.render import emit, emit_lines
from settled_cli.verdict import say

_HEAD: Final = re.compile(r"(?P<seal>[0-9]{1,18}):(?P<hex>[0-9a-fA-F]+)")


@click.group(cls=Verbs)
def audit() -> None:
    """Verify the chain of events, print its head, export it."""


@audit.command()
@click.option(
    "--head", "kept", metavar="SEAL:HEX", help="A head that was kept elsewhere: finds a history that was cut or rewritten as a whole."
)
@click.pass_context
def verify(ctx: click.Context, kept: str | None) -> None:
    """Recompute all that was recorded. Exit 1 if anything is not as it was written."""
    check(ctx, None if kept is None else _parse_head(kept))


def check(ctx: click.Context, expected: tuple[int, str] | None = None) -> None:
    """Audit the ledger, show what is wrong, and end with the code that it deserves."""
    invocation: Invocation = ctx.obj
    app = open_app(invocation)
    findings = audit_verify(app.ledger, expected=expected, decode=app.shell.codec.decode)
    if findings or invocation.for_programs:
        emit(invocation, [finding._asdict() for finding in findings], ("operation_id", "sequence", "problem"))
    if findings:
        say(
            f"{len(findings)} things are not as they were written, the first is {_place(findings[0])}: {findings[0].problem}. "
            f"Nothing was changed. Keep a copy of the file"
        )
    elif not invocation.for_programs:
        say("all is as it was written")
    ctx.exit(1 if findings else 0)


def _place(found: Finding) -> str:
    if found.operation_id is None:
        return "in the ledger as a whole"
    return f"in {found.operation_id}" + ("" if found.sequence is None else f", event {found.sequence}")


@audit.command()
@click.pass_obj
def head(invocation: Invocation) -> None:
    """Print the head: one line that pins all history before it, if you keep it elsewhere."""
    last = audit_head(open_app(invocation).ledger)
    emit(invocation, {"seal": last.seal_id, "head": last.hex})


@audit.command()
@click.pass_obj
def export(invocation: Invocation) -> None:
    """Print all events and seals as JSON lines, without arguments and outputs."""
    emit_lines(audit_export(open_app(invocation).ledger))


def _parse_head(text: str) -> tuple[int, str]:
    said = _HEAD.fullmatch(text)
    if said is None:
        raise click.UsageError("--head is not SEAL:HEX, as settled audit head prints them. Nothing was read")
    return int(said["seal"]), said["hex"].lower()
