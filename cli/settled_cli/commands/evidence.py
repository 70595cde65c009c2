"""`settled evidence`: add what a provider told you, judged like a probe's answer."""

from typing import Any

import click

from settled.core.evidence import NO_OUTPUT, ProbeResult, ProbeStatus
from settled_cli.invocation import Invocation, Verbs, usage_errors
from settled_cli.opening import open_app
from settled_cli.reading import read_json, read_source
from settled_cli.render import emit
from settled_cli.summaries import shown


@click.group(cls=Verbs)
def evidence() -> None:
    """Add what a provider told you."""


@evidence.command()
@click.option("--operation-id", metavar="ID", help="Which operation it speaks of.")
@click.option("--provider-reference", metavar="REFERENCE", help="Or: by which reference the provider names it.")
@click.option("--source", required=True, metavar="TEXT", help="Who says so, for example webhook:stripe.")
@click.option("--status", required=True, type=click.Choice([status.value for status in ProbeStatus]), help="What it says.")
@click.option("--reference", metavar="REFERENCE", help="The provider reference that it echoes. Default: --provider-reference.")
@click.option("--healthy/--unhealthy", default=False, help="Whether the way that it came by was shown to work.")
@click.option("--terminal", is_flag=True, help="With not_committed: the provider says that it cannot commit later.")
@click.option("--provider-operation-id", metavar="ID", help="With committed: what the provider calls the effect.")
@click.option("--output-json", metavar="JSON", help="With committed: the result.")
@click.option("--facts", metavar="JSON|@FILE|-", help="A JSON object that is kept with it.")
@click.pass_obj
def add(invocation: Invocation, /, operation_id: str | None, provider_reference: str | None, source: str, **said: Any) -> None:
    """Add one piece of evidence. It confirms or closes nothing that a probe's answer could not."""
    if (operation_id is None) == (provider_reference is None):
        raise click.UsageError("give either --operation-id or --provider-reference. Nothing was changed")
    result = _result(provider_reference, **said)
    app = open_app(invocation)
    with usage_errors():
        operation = app.add_evidence(operation_id=operation_id, provider_reference=provider_reference, source=source, result=result)
    if operation is None:
        emit(invocation, {"kept_for": provider_reference, "operation_id": None})
        return
    emit(invocation, operation.to_json() if invocation.for_programs else shown(operation))


def _result(
    provider_reference: str | None,
    *,
    status: str,
    reference: str | None,
    healthy: bool,
    terminal: bool,
    provider_operation_id: str | None,
    output_json: str | None,
    facts: str | None,
) -> ProbeResult:
    """Build the answer. Raises UsageError for what contradicts itself."""
    what = ProbeStatus(status)
    kept = None if facts is None else read_json(read_source(facts, "--facts"), "--facts")
    if kept is not None and not isinstance(kept, dict):
        raise click.UsageError("--facts is not a JSON object. Nothing was changed")
    common: dict[str, Any] = {
        "healthy": healthy or what is ProbeStatus.COMMITTED,
        "evidence": kept,
    }
    if what is not ProbeStatus.UNKNOWN:
        common["reference"] = reference or provider_reference
    elif reference is not None:
        raise click.UsageError("--reference does not belong to --status unknown, which speaks of no effect. Nothing was changed")
    if terminal and what is not ProbeStatus.NOT_COMMITTED:
        raise click.UsageError("--terminal belongs to --status not_committed. Nothing was changed")
    if what is not ProbeStatus.COMMITTED and (provider_operation_id is not None or output_json is not None):
        raise click.UsageError("--provider-operation-id and --output-json belong to --status committed. Nothing was changed")
    with usage_errors():
        match what:
            case ProbeStatus.COMMITTED:
                output = NO_OUTPUT if output_json is None else read_json(output_json, "--output-json")
                return ProbeResult.committed(provider_operation_id=provider_operation_id, output=output, **common)
            case ProbeStatus.NOT_COMMITTED:
                return ProbeResult.not_committed(terminal=terminal, **common)
            case ProbeStatus.PENDING:
                return ProbeResult.pending(**common)
            case ProbeStatus.UNKNOWN:
                return ProbeResult.unknown(**common)
