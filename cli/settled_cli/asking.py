"""Ask a person at a terminal. One question, one answer, never a loop: the end of input ends the command and changes nothing."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

Decider = TypeVar("Decider", bound=Callable[..., Any])


def decides(command: Decider) -> Decider:
    """Add the operation, and the two options that every decision of a person has."""
    for option in (
        click.option("--reason", metavar="TEXT", help="Why."),
        click.option("--actor", metavar="NAME", help="Who decides."),
        click.argument("operation_id"),
    ):
        command = option(command)
    return command


def at_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def ask(question: str) -> str:
    """Return the answer. Raises UsageError at the end of input and for a blank answer."""
    click.echo(f"{question} ", err=True, nl=False)
    line = sys.stdin.readline()
    if not line:
        click.echo(err=True)
        raise click.UsageError("the input ended before the answer. Nothing was changed")
    if not line.strip():
        raise click.UsageError("the answer was blank. Nothing was changed")
    return line.strip()


def required(value: str | None, option: str, question: str) -> str:
    """Return what an option gave, else what a person at a terminal answers. Raises UsageError for neither and for blank text."""
    if value is None and at_terminal():
        return ask(question)
    if value is None:
        raise click.UsageError(f"{option} is missing. Nothing was changed")
    if not value.strip():
        raise click.UsageError(f"{option} is blank. Nothing was changed")
    return value


def who_and_why(actor: str | None, reason: str | None) -> dict[str, str]:
    """Return the name and the reason, asked for where somebody can be asked. Raises UsageError as `required` does."""
    return {"actor": required(actor, "--actor", "Who decides?"), "reason": required(reason, "--reason", "Why?")}
