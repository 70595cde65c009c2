"""`settled escalation`: what is open, what has not arrived, and whether a channel works before the night."""

import os
import secrets

import click

from settled.clock import SystemClock
from settled.config.escalation import LOG, LogChannel
from settled.core.errors import ConfigurationError
from settled.core.ladder import Incident
from settled.core.limits import DEFAULTS
from settled.core.text import one_line, safe_str
from settled.opening import choose_redactor
from settled.steps.telling import test_body
from settled.store import incidents, outbox
from settled.store.reads import read_row
from settled_cli.invocation import Invocation, Verbs
from settled_cli.opening import load, open_app
from settled_cli.render import emit, utc
from settled_cli.summaries import UNDELIVERED, undelivered_facts
from settled_worker.channels import DeliveryFailedError, Message, make_channel

_LISTED = ("incident", "operation_id", "contract", "kind", "reason", "risk", "opened", "acknowledged_by", "assigned_to", "next")


@click.group(cls=Verbs)
def escalation() -> None:
    """See what people were told, what has not arrived, and try a channel."""


@escalation.command("test")
@click.argument("channel")
@click.pass_context
def try_channel(ctx: click.Context, channel: str) -> None:
    """Send a test through CHANNEL now, without a worker and without the ledger. Exit 1 if it did not arrive."""
    invocation: Invocation = ctx.obj
    loaded = load(invocation)
    declared = {LOG: LogChannel(), **loaded.settings.escalation.channels}
    if channel not in declared:
        raise ConfigurationError(
            f"no channel {one_line(channel, DEFAULTS.name_max)!r} is declared. Nothing was sent. Declared: {', '.join(sorted(declared))}"
        )
    clock = SystemClock()
    now_us = clock.now().wall_us
    delivery_id = secrets.token_hex(16)
    message = Message(delivery_id=delivery_id, created_us=now_us, body=test_body(delivery_id, channel, now_us))
    problem = None
    try:
        make_channel(declared[channel], environ=os.environ, clock=clock).send(message)
    except DeliveryFailedError as error:
        redact = choose_redactor(loaded.config_file)
        problem = one_line(redact(safe_str(error)), DEFAULTS.error_text_max)
    emit(invocation, {"channel": channel, "delivery_id": delivery_id, "delivered": problem is None, "error": problem})
    ctx.exit(0 if problem is None else 1)


@escalation.command("list")
@click.option("--limit", type=click.IntRange(1, DEFAULTS.list_max), default=DEFAULTS.list_default, show_default=True)
@click.pass_obj
def list_open(invocation: Invocation, limit: int) -> None:
    """List open incidents, the oldest first."""
    with open_app(invocation).ledger.read() as transaction:
        found = incidents.find_open(transaction, limit)
        named = {one.operation: read_row(transaction, one.operation).operation_id for one in found if one.operation is not None}
    emit(invocation, [_facts(one, named.get(one.operation or 0)) for one in found], _LISTED)


@escalation.command()
@click.pass_obj
def undelivered(invocation: Invocation) -> None:
    """Show what no channel has taken yet, the oldest first."""
    with open_app(invocation).ledger.read() as transaction:
        emit(invocation, undelivered_facts(outbox.undelivered(transaction)), UNDELIVERED)


def _facts(one: Incident, operation_id: str | None) -> dict[str, object]:
    return {
        "incident": one.id,
        "operation_id": operation_id,
        "contract": one.contract,
        "queue": one.queue,
        "kind": one.kind,
        "reason": one.reason,
        "risk": one.risk,
        "opened": utc(one.opened_us),
        "acknowledged_by": one.acknowledged_by,
        "assigned_to": one.assigned_to,
        "snoozed_until": None if one.snoozed_us is None else utc(one.snoozed_us),
        "steps_taken": one.taken,
        "next": None if one.due_us is None else utc(one.due_us),
    }
