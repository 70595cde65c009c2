"""`settled pause` and `settled resume`: hold operations back from dispatch, and let them go again, on the record."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from settled.steps.pausing import Pause
from settled.steps.persons import os_user
from settled_cli.asking import required
from settled_cli.invocation import Invocation, Leaf, usage_errors
from settled_cli.opening import open_app
from settled_cli.render import emit
from settled_cli.verdict import say

PAUSED = ("scope", "name", "reason", "actor", "at")
_LIFTED = (*PAUSED, "resumed_at", "resumed_by", "resumed_reason")


def scoped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what both verbs are told: which operations, who, and why."""
    for option in (
        click.option("--actor", metavar="NAME", help="Who decides. Default: your user name."),
        click.option("--reason", metavar="TEXT", help="Why; an incident, a ticket."),
        click.option("--queue", metavar="QUEUE", help="All operations of this queue."),
        click.option("--contract", metavar="CONTRACT", help="All operations of this contract."),
    ):
        command = option(command)
    return command


@click.command(cls=Leaf)
@scoped
@click.option("--list", "listed", is_flag=True, help="Change nothing; show what is paused and what ever was.")
@click.pass_obj
def pause(
    invocation: Invocation, contract: str | None, queue: str | None, reason: str | None, actor: str | None, listed: bool
) -> None:
    """Dispatch nothing of a contract, of a queue, or without either option at all. Handlers that run and probes go on."""
    app = open_app(invocation)
    if listed:
        emit(invocation, [asdict(one) for one in app.pauses(lifted=True)], _LIFTED)
        return
    said = _said(contract, queue, reason, actor)
    with usage_errors():
        made = app.pause(contract, queue, **said)
    emit(invocation, asdict(made) if invocation.for_programs else {name: getattr(made, name) for name in PAUSED})


@click.command(cls=Leaf)
@scoped
@click.pass_obj
def resume(invocation: Invocation, contract: str | None, queue: str | None, reason: str | None, actor: str | None) -> None:
    """Lift the pauses of a contract, of a queue, or without either option the one of everything."""
    app = open_app(invocation)
    said = _said(contract, queue, reason, actor)
    with usage_errors():
        lifted = app.resume(contract, queue, **said)
    emit(invocation, [asdict(one) for one in lifted], _LIFTED)
    left: list[Pause] = app.pauses()
    if left:
        say(f"still paused: {'; '.join(map(str, left))}")


def _said(contract: str | None, queue: str | None, reason: str | None, actor: str | None) -> dict[str, str]:
    if contract is not None and queue is not None:
        raise click.UsageError("give --contract or --queue, or neither, which means everything. Nothing was changed")
    why = required(reason, "--reason", "Why?")
    return {"reason": why, "actor": os_user() if actor is None else required(actor, "--actor", "")}
