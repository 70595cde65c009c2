"""What every decision about an unknown outcome needs beside a name and a reason, asked for where somebody can be asked.

Promise: nothing is changed before every fact is there: who, why, by which evidence, and which version the person saw.
"""

from typing import Any, Final

import click

from settled.app import App
from settled.operation import Operation
from settled_cli.asking import Decider, ask, at_terminal, decides, required, who_and_why
from settled_cli.invocation import Invocation
from settled_cli.opening import open_app

ASSERTS: Final = "You assert that no attempt of this operation took effect, and that none still can."


def facts(function: Decider) -> Decider:
    """Add what every decision has, and what one about an unknown outcome needs beside it."""
    function = click.option("--expected-version", type=int, metavar="N", help="The version that you saw in settled op show.")(function)
    kept = "Where your evidence is kept: a ticket, a page, a log."
    return decides(click.option("--evidence-reference", metavar="TEXT", help=kept)(function))


def seen(invocation: Invocation, operation_id: str, expected_version: int | None) -> tuple[App, Operation]:
    """Return the operation as it is. Raises UsageError with the current version where the person names none."""
    app = open_app(invocation)
    operation = app.get(operation_id)
    if expected_version is None:
        raise click.UsageError(
            f"--expected-version is missing: {operation_id} is {operation.status} at version {operation.version}. Nothing was changed"
        )
    return app, operation


def decision(said: dict[str, Any]) -> dict[str, Any]:
    """Return the four facts, asked for where somebody can be asked."""
    return {
        **who_and_why(said["actor"], said["reason"]),
        "evidence_reference": required(said["evidence_reference"], "--evidence-reference", "Where is the evidence kept?"),
        "expected_version": said["expected_version"],
    }


def check_typed(operation_id: str, confirm_operation_id: str | None) -> None:
    """Raise UsageError unless the ID was typed once more."""
    if confirm_operation_id is None and not at_terminal():
        raise click.UsageError(f"--confirm-operation-id is missing: repeat the ID {operation_id}. Nothing was changed")
    typed = ask(f"To authorize one more dispatch, type the ID {operation_id}:") if confirm_operation_id is None else confirm_operation_id
    if typed != operation_id:
        raise click.UsageError(f"the ID typed once more is {typed!r}, not {operation_id!r}. Nothing was changed")
