"""`settled certify`: try a user's contract, handler and probe with real workers that are killed, and say which claims did not hold."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from settled.app import App
from settled.contract import EffectContract
from settled.core.errors import ConfigurationError, ContractNotFoundError
from settled.core.limits import DEFAULTS
from settled.core.text import one_line, safe_str
from settled.effect import Effect
from settled.testing.sandbox import BEYOND, TROUBLES, ProviderSandbox, Sandbox
from settled_cli.invocation import Invocation, Leaf, Reference, app_option, only
from settled_cli.opening import app_reference, import_app, import_object, load
from settled_cli.render import emit, write
from settled_cli.reports import check_writable, write_report
from settled_cli.verdict import say
from settled_worker.testing.certify import Certificate, Told, certify, plan
from settled_worker.testing.page import to_html
from settled_worker.testing.points import HOSTS, POINTS

_SANDBOX: Final = "sandbox"
_NOTHING: Final = (
    "nothing of what was chosen can be played, and nothing was started. `sending` needs a contract with announces_sending=True; an outage "
    "needs a guaranteed key with a finite window, and a kill at mid-request or after commit; a trouble needs a sandbox that can make it."
)


@click.command("certify", cls=Leaf)
@click.argument("contract", type=Reference(), metavar="MODULE:CONTRACT")
@app_option("The App that has the handler. Default: SETTLED_APP, settled.toml, the effect's own.")
@click.option(
    "--sandbox",
    type=Reference(),
    metavar="MODULE:OBJECT",
    help="The destination. Default: `sandbox` beside the contract, else the fake provider.",
)
@click.option("--quick", is_flag=True, help="Each kill on a well host, and each trouble of the host without a kill, instead of every pair.")
@click.option("--point", "points", multiple=True, **only(POINTS, "POINT"))
@click.option("--host", "hosts", multiple=True, **only(HOSTS, "TROUBLE"))
@click.option("--trouble", "troubles", multiple=True, **only([one.name for one in (*TROUBLES, *BEYOND)], "TROUBLE"))
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Rounds at a time.")
@click.option(
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="REPORT",
    help="Write it, too: a page for *.html, JUnit for *.xml, text for *.txt, else JSON. May be given several times; folders are made.",
)
@click.pass_context
def certify_command(
    ctx: click.Context,
    contract: str,
    app_ref: str | None,
    sandbox: str | None,
    quick: bool,
    points: tuple[str, ...],
    hosts: tuple[str, ...],
    troubles: tuple[str, ...],
    jobs: int,
    outputs: tuple[Path, ...],
) -> None:
    """Run real workers over MODULE:CONTRACT at a sandbox, kill them at every point, and count the effects.

    Exit codes: 0 no case failed and no claim was false; 1 otherwise; 78 the contract, its app or its sandbox cannot be had.
    Minutes, not seconds: narrow it with --quick, --point, --host and --trouble.
    """
    invocation: Invocation = ctx.obj
    for output in outputs:
        check_writable(output)
    found, owner, reference = _contract(invocation, contract, app_ref)
    place = _sandbox(contract, sandbox)
    chosen: dict[str, Any] = {
        "points": points or tuple(POINTS), "hosts": hosts or tuple(HOSTS), "troubles": troubles or None, "quick": quick
    }  # fmt: skip
    if not plan(found, place, **chosen):
        raise click.UsageError(_NOTHING)
    with _progress() as told:
        certificate = certify(owner, found, place, app_reference=reference, jobs=jobs, told=told, **chosen)
    for output in outputs:
        write_report(output, _forms(certificate))
    if invocation.for_programs:
        emit(invocation, certificate.to_json())
    else:
        write(certificate.to_report().to_text() + "\n")
    if certificate.not_tried:
        say(f"not tried: {'; '.join(certificate.not_tried)}")
    say(
        f"{len(certificate.cases)} cases, {len(certificate.failures)} failed, {certificate.left_to_people} left to a person; "
        "what this does not say stands in docs/testing.md"
    )
    ctx.exit(0 if certificate.passed else 1)


def _contract(invocation: Invocation, named: str, app: str | None) -> tuple[EffectContract, App, str]:
    """Return the contract, the App that has its handler, and how a runner imports that. Raises ConfigurationError."""
    reference = app_reference(app, load(invocation))
    owner = None if reference is None else import_app(reference)
    name = named.partition(":")[2]
    found = import_object(named, "contract", missing_is=None)
    if found is None and owner is not None:
        found = owner.contracts.get(name)
    if found is None:
        raise ContractNotFoundError(name or named, () if owner is None else tuple(owner.contracts))
    if isinstance(found, Effect) and owner is None:
        owner = found.app
        reference = owner.module_reference()
    contract = found.contract if isinstance(found, Effect) else found
    if not isinstance(contract, EffectContract):
        raise ConfigurationError(f"{named} is of type {type(contract).__name__}, not an effect or a contract. Nothing was started.")
    if owner is None or reference is None:
        raise ConfigurationError(
            f"{named} is a contract without an App, and certify needs its handler. Nothing was started. Name the App: --app MODULE:APP"
        )
    known = owner.contracts.get(contract.name)
    if known is None or not known.has_handler:
        raise ConfigurationError(f"the app {reference} has no handler for {contract.name!r}. Nothing was started. Register one")
    return known, owner, reference


def _sandbox(contract: str, named: str | None) -> Sandbox:
    module = contract.partition(":")[0]
    found = import_object(named or f"{module}:{_SANDBOX}", "sandbox", missing_is=None if named is None else ...)
    if found is None:
        say("no sandbox stands beside the contract: the fake provider is the destination, and it deduplicates nothing")
        return ProviderSandbox()
    if isinstance(found, type) and issubclass(found, Sandbox):
        found = _made(found)
    if not isinstance(found, Sandbox):
        raise ConfigurationError(f"the sandbox is of type {type(found).__name__}, not a settled.testing.Sandbox. Nothing was started.")
    return found


def _made(kind: type[Sandbox]) -> Sandbox:
    try:
        return kind()
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {safe_str(error)}", DEFAULTS.error_text_max)
        raise ConfigurationError(f"the sandbox {kind.__name__} cannot be made: {said}. Nothing was started.") from error


def _forms(certificate: Certificate) -> dict[str, str]:
    report = certificate.to_report()
    return {
        ".json": json.dumps(certificate.to_json(), indent=2, sort_keys=True) + "\n",
        ".xml": report.to_junit(),
        ".txt": report.to_text() + "\n",
        ".html": to_html(certificate),
        ".htm": to_html(certificate),
    }


@contextlib.contextmanager
def _progress() -> Iterator[Told]:
    """Show a bar on a terminal, and a line now and then elsewhere, on standard error."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda done, total, what: click.echo(f"settled certify: {done} of {total} rounds: {what}", err=True)
        return
    from rich.console import Console  # only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: Any = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[what]}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("rounds", total=None, what="starting")
        yield lambda done, total, what: progress.update(task, completed=done, total=total, what=what)
