"""The two-person rule: one person proposes a resolution, another one approves or declines it."""

from typing import Any

import click

from settled.app import App
from settled.core.proposal import VERBS, Proposal, Verb
from settled_cli.asking import at_terminal, decides, who_and_why
from settled_cli.deciding import ASSERTS, check_typed, decision, facts, seen
from settled_cli.invocation import Invocation, Leaf, Refused, usage_errors
from settled_cli.opening import open_app
from settled_cli.reading import read_json
from settled_cli.render import emit, utc
from settled_cli.summaries import proposed, shown
from settled_cli.verdict import say


@click.command(cls=Leaf)
@click.argument("verb", type=click.Choice(VERBS))
@facts
@click.option("--output-json", metavar="JSON", help="With confirm: the result that later requests get.")
@click.option("--provider-operation-id", metavar="ID", help="With confirm: what the destination calls the effect.")
@click.option("--assert-nothing-can-arrive", is_flag=True, help="Assert, on the record, that nothing already sent can still arrive.")
@click.option("--accept-second-effect", is_flag=True, help="With authorize-retry: accept a second effect in so many words.")
@click.pass_obj
def propose(invocation: Invocation, /, verb: Verb, operation_id: str, output_json: str | None, **said: Any) -> None:
    """Propose confirm, reject or authorize-retry. Nothing moves until another person approves."""
    app, _ = seen(invocation, operation_id, said["expected_version"])
    if verb != "confirm" and (output_json is not None or said["provider_operation_id"] is not None):
        raise click.UsageError("--output-json and --provider-operation-id belong to confirm. Nothing was changed")
    if verb != "confirm":
        say(ASSERTS)
    more: dict[str, Any] = {} if output_json is None else {"output": read_json(output_json, "--output-json")}
    flags = {name: said[name] for name in ("provider_operation_id", "assert_nothing_can_arrive", "accept_second_effect")}
    with usage_errors():
        proposal = app.propose(operation_id, verb, **decision(said), **flags, **more)
    emit(invocation, {"operation_id": operation_id, **proposed(proposal), "next": _next(operation_id, proposal)})


@click.command(cls=Leaf)
@decides
@click.option("--proposal", "number", type=int, metavar="N", help="The number of the proposal that you saw.")
@click.option("--confirm-operation-id", metavar="ID", help="For authorize-retry: the ID once more, where nobody can be asked for it.")
@click.pass_obj
def approve(invocation: Invocation, /, operation_id: str, number: int | None, confirm_operation_id: str | None, **said: Any) -> None:
    """Carry out what another person proposed. It is bound to the version, the verb and the output that were proposed."""
    app, proposal = _standing(invocation, operation_id, number)
    wanted = proposal.wanted
    first = wanted.decision
    say(f"proposal {proposal.number} of {first.actor} ({first.principal}): {wanted.verb}, because {first.reason}")
    if wanted.verb != "confirm":
        say(ASSERTS)
    if wanted.verb == "authorize-retry" and at_terminal():
        say(f"exactly one more dispatch follows; looking first is safe: settled op probe {operation_id}")
    person = who_and_why(said["actor"], said["reason"])
    if wanted.verb == "authorize-retry":
        check_typed(operation_id, confirm_operation_id)
    with usage_errors():
        operation = app.approve_proposal(operation_id, proposal=proposal.number, **person)
    emit(invocation, {**(operation.to_json() if invocation.for_programs else shown(operation)), "resolved": True})


@click.command(cls=Leaf)
@decides
@click.option("--proposal", "number", type=int, metavar="N", help="The number of the proposal that you saw.")
@click.pass_obj
def decline(invocation: Invocation, operation_id: str, actor: str | None, reason: str | None, number: int | None) -> None:
    """Decline a proposal, or take your own one back. Nothing moves."""
    app, proposal = _standing(invocation, operation_id, number)
    person = who_and_why(actor, reason)
    with usage_errors():
        operation = app.decline_proposal(operation_id, proposal=proposal.number, **person)
    emit(invocation, {**(operation.to_json() if invocation.for_programs else shown(operation)), "declined": proposal.number})


def _standing(invocation: Invocation, operation_id: str, number: int | None) -> tuple[App, Proposal]:
    """Return the proposal that was named. Raises UsageError with the one that stands where none is named."""
    app = open_app(invocation)
    proposal = app.proposal(operation_id)
    if number is None:
        stands = "none stands" if proposal is None else f"proposal {proposal.number} ({proposal.wanted.verb}) stands"
        raise click.UsageError(f"--proposal is missing: of {operation_id} {stands}. Nothing was changed")
    if proposal is None or proposal.number != number:
        raise Refused(_not_that_one(operation_id, number, proposal))
    return app, proposal


def _not_that_one(operation_id: str, number: int, proposal: Proposal | None) -> str:
    why = "no proposal stands, it lapsed or never was" if proposal is None else f"proposal {proposal.number} stands"
    return f"proposal {number} of {operation_id} cannot be decided: {why}. Nothing was changed. See: settled quarantine list --pending"


def _next(operation_id: str, proposal: Proposal) -> str:
    until = utc(proposal.expires_us)
    return f"another person, until {until}: settled quarantine approve {operation_id} --proposal {proposal.number}"
