"""Decide many at once: count first, then the very operations that were counted, each at the version that was seen.

Promise: nothing is decided that the count did not show, and no retry is ever authorized this way.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from settled.app import App
from settled.core.errors import SettledError
from settled.core.limits import DEFAULTS
from settled.core.text import safe_str
from settled.core.words import Reason, Risk
from settled.steps.awaiting import Waiting
from settled_cli.asking import Decider, ask, at_terminal, required, who_and_why
from settled_cli.deciding import ASSERTS
from settled_cli.invocation import Invocation, Leaf, Refused, Seconds, only, usage_errors
from settled_cli.opening import open_app
from settled_cli.render import emit, show_table
from settled_cli.summaries import WAITING, waiting_row
from settled_cli.verdict import say

_DONE: Final = ("operation_id", "done", "status", "problem")


def selects(command: Decider) -> Decider:
    """Add the options that select among what waits for a person."""
    for option in (
        click.option("--older-than", type=Seconds(), metavar="SECONDS", help="Only what has waited for longer."),
        click.option("--reason-code", **only([one.value for one in Reason], "CODE")),
        click.option("--risk", type=click.Choice([one.value for one in Risk]), help="Only this risk."),
        click.option("--contract", metavar="NAME", help="Only this contract."),
    ):
        command = option(command)
    return command


def chosen(selection: dict[str, Any]) -> dict[str, Any]:
    """Return the selection in the words of the library."""
    return {name: selection[given] for name, given in _SELECTION.items()}


_SELECTION: Final = {"contract": "contract", "risk": "risk", "reason": "reason_code", "older_than": "older_than"}


def _decides_many(command: Decider) -> Decider:
    for option in (
        click.option("--selection", metavar="COUNT:CODE", help="What the count printed. With --yes: exactly those, or nothing."),
        click.option("--yes", is_flag=True, help="Decide, where nobody can be asked for the count."),
        click.option("--evidence-reference", metavar="TEXT", help="Where your evidence is kept: a ticket, a page, a log."),
        click.option("--reason", metavar="TEXT", help="Why."),
        click.option("--actor", metavar="NAME", help="Who decides."),
    ):
        command = option(command)
    return selects(command)


@click.command("confirm-all", cls=Leaf)
@_decides_many
@click.pass_context
def confirm_all(ctx: click.Context, /, **said: Any) -> None:
    """Confirm all that is selected. Without --yes it only counts, or asks for the count at a terminal."""
    _decide_all(ctx, said, lambda app, one, facts: app.confirm(one, **facts))


@click.command("reject-all", cls=Leaf)
@_decides_many
@click.option("--assert-nothing-can-arrive", is_flag=True, help="Assert, on the record, that nothing already sent can still arrive.")
@click.pass_context
def reject_all(ctx: click.Context, /, assert_nothing_can_arrive: bool, **said: Any) -> None:
    """Reject all that is selected. Without --yes it only counts, or asks for the count at a terminal."""
    say(ASSERTS.replace("this operation", "the selected operations"))
    _decide_all(ctx, said, lambda app, one, facts: app.reject(one, assert_nothing_can_arrive=assert_nothing_can_arrive, **facts))


def _decide_all(ctx: click.Context, said: dict[str, Any], decide: Callable[[App, str, dict[str, Any]], Any]) -> None:
    invocation: Invocation = ctx.obj
    if not any(value is not None for value in chosen(said).values()):
        raise click.UsageError("nothing is selected: give --contract, --risk, --reason-code or --older-than. Nothing was changed")
    asks = at_terminal() and not invocation.for_programs
    named = said["yes"] or said["selection"] is not None
    if named and not said["yes"] and not asks:
        raise click.UsageError("--selection decides only with --yes where nobody can be asked. Nothing was changed")
    app = open_app(invocation)
    found = app.waiting_for_people(limit=DEFAULTS.list_max, **chosen(said))
    code = selection_code(found)
    if named:
        _check_selection(found, code, said["selection"])
    elif not found or not asks:
        _count(invocation, found, code)
        return
    facts = {
        **who_and_why(said["actor"], said["reason"]),
        "evidence_reference": required(said["evidence_reference"], "--evidence-reference", "Where is the evidence kept?"),
    }
    if not named:
        _ask_count(found)
    ended = [_decide_one(app, one, facts, decide) for one in found]
    emit(invocation, ended, _DONE)
    ctx.exit(0 if all(one["done"] for one in ended) else Refused.exit_code)


def selection_code(found: Sequence[Waiting]) -> str:
    """Return how many there are and a short digest of which they are, at which versions."""
    named = "\n".join(sorted(f"{one.operation.operation_id} {one.operation.version}" for one in found))
    return f"{len(found)}:{hashlib.sha256(named.encode()).hexdigest()[:8]}"


def _count(invocation: Invocation, found: Sequence[Waiting], code: str) -> None:
    if invocation.for_programs:
        emit(invocation, {"count": len(found), "selection": code, "operations": [waiting_row(one) for one in found]})
        return
    show_table([waiting_row(one) for one in found], WAITING)
    say(f"{len(found)} operations are selected. Nothing was changed. To decide exactly these: --yes --selection {code}")


def _check_selection(found: Sequence[Waiting], code: str, given: str | None) -> None:
    """Raise unless the person names exactly what is selected now, before anything is asked."""
    if given is None:
        raise click.UsageError(f"--selection is missing: {len(found)} are selected now, {code}. Nothing was changed")
    if given != code:
        raise Refused(f"the selection is now {code}, not {given}. Nothing was changed. Count again without --yes")


def _ask_count(found: Sequence[Waiting]) -> None:
    """Show what is selected, and raise UsageError unless its count is typed."""
    show_table([waiting_row(one) for one in found], WAITING)
    typed = ask(f"To decide all of these, type how many they are ({len(found)}):")
    if typed != str(len(found)):
        raise click.UsageError(f"the count typed is {typed!r}, not {len(found)}. Nothing was changed")


def _decide_one(app: App, one: Waiting, facts: dict[str, Any], decide: Callable[[App, str, dict[str, Any]], Any]) -> dict[str, Any]:
    operation_id = one.operation.operation_id
    try:
        with usage_errors():
            status = decide(app, operation_id, {**facts, "expected_version": one.operation.version}).status
    except SettledError as error:
        return {"operation_id": operation_id, "done": False, "status": one.operation.status, "problem": safe_str(error)}
    return {"operation_id": operation_id, "done": True, "status": status, "problem": None}
