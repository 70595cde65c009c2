"""`settled demo`: the whole story in a temporary folder, or one scenario of it. Payments go wrong, a worker is killed, charges are counted.

Promise: the verdict is counted by the destination itself, never by settled, and the exit code is the verdict.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from settled.app import App
from settled.core.words import SETTLED
from settled_cli.demo import client, payments
from settled_cli.demo.launch import running_shop
from settled_cli.demo.naive import pay
from settled_cli.demo.plan import AMOUNT_CENTS, KILLED, OTHERS, PAYMENTS, Payment, report, table
from settled_cli.demo.processes import DemoFailedError, naive_payer, wait_for, worker
from settled_cli.demo.scenario import SCENARIOS, play
from settled_cli.invocation import Invocation, Leaf
from settled_cli.render import emit
from settled_cli.reports import check_writable
from settled_cli.verdict import say

_SETTINGS: Final = """
[worker]
process_runners = 2
[sweeps.leases]
every_seconds = 0.2
[sweeps.reconcile]
every_seconds = 0.1
[contracts.charge_card]
probe_interval_seconds = 0.3
probe_attempts_max = 100
"""
_COMMITTED_SECONDS: Final = 30.0
Tell = Callable[[str], None]


@click.command(cls=Leaf)
@click.option("--scenario", type=click.Choice(SCENARIOS), help="Play one scenario and print its report, instead of the whole story.")
@click.option(
    "--output", "file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the report as JSON to FILE, too."
)
@click.option("--provider-commits-twice", is_flag=True, help="Break the shop, to see the demo fail.")
@click.pass_context
def demo(ctx: click.Context, scenario: str | None, file: Path | None, provider_commits_twice: bool) -> None:
    """Kill a worker between a charge and its answer, and count the charges. Exit 0 only if each payment was charged one time."""
    invocation: Invocation = ctx.obj
    if file is not None:
        check_writable(file)
    with tempfile.TemporaryDirectory(prefix="settled-demo-") as folder:
        if scenario is None:
            answer = _whole_story(Path(folder), twice=provider_commits_twice)
        else:
            answer = play(scenario, Path(folder), twice=provider_commits_twice)
    if file is not None:
        file.write_text(json.dumps(answer, sort_keys=True, indent=2) + "\n", encoding="utf-8")
    if invocation.for_programs or scenario is not None:
        emit(invocation, answer)
    else:
        rows = table(answer)
        emit(invocation, rows, tuple(rows[0]))
    say(verdict(answer) if scenario is None else verdict_of_one(answer))
    ctx.exit(0 if answer["passed"] else 1)


def _whole_story(folder: Path, *, twice: bool) -> dict[str, Any]:
    with telling() as tell:
        try:
            return story(folder, tell, twice=twice)
        except (DemoFailedError, TimeoutError, RuntimeError) as error:
            raise click.ClickException(f"{error}.{_last_words(folder)}") from error


def story(folder: Path, tell: Tell, *, twice: bool) -> dict[str, Any]:
    """Carry the demo through; return its report."""
    settings = folder / "settled.toml"
    settings.write_text(_SETTINGS)
    app = payments.app
    app.flag, app.settings_file = str(folder / "settled.db"), settings  # whatever lies in the working directory is no business of ours
    try:
        app.create_database()
        with running_shop(folder / "charges.jsonl") as shop:
            tell("the shop is open; paying the naive way: charge, and try again when no answer comes")
            _pay_naively(folder, shop.url)
            tell("paying with settled: the worker is killed (SIGKILL) after the shop charged, before the answer arrived")
            _kill_a_worker(folder, app, shop.url)
            tell("a new worker starts; five more payments go wrong in their own ways")
            _pay(folder, app, shop.url, twice=twice)
            wait_for(lambda: _nothing_pending(shop.url), "the shop has decided everything")
            operations = {payment.operation_id: app.get(payment.operation_id) for payment in PAYMENTS}
            types = {name: [event.type for event in app.events(name)] for name in operations}
            return report(client.counts(shop.url), operations, types)
    finally:
        app.close()


def verdict(answer: dict[str, Any]) -> str:
    """Say the result in one sentence."""
    naive = answer["naive"]["charged_more_than_once"]
    retried = f"trying again charged {naive} of {len(PAYMENTS)} payments more than once"
    if answer["passed"]:
        return f"with settled each payment was charged one time; {retried}"
    return f"NOT every payment was charged one time and confirmed; {retried}"


def verdict_of_one(answer: dict[str, Any]) -> str:
    """Say the result of one scenario in one sentence."""
    counted = f"the provider counted {answer['committed_effect_count']} after {answer['attempts']} attempt(s)"
    return f"confirmed, {counted}" if answer["passed"] else f"NOT confirmed with one effect: {answer['status']}, {counted}"


def _pay_naively(folder: Path, url: str) -> None:
    for payment in OTHERS:
        _arm(url, payment, payment.naive_reference)
        pay(url, payment.naive_reference, AMOUNT_CENTS)
    _arm(url, KILLED, KILLED.naive_reference)
    with naive_payer(folder, url, KILLED.naive_reference, AMOUNT_CENTS) as payer:
        client.wait_until(url, KILLED.naive_reference, "committed", timeout=_COMMITTED_SECONDS)
        payer.kill()
    pay(url, KILLED.naive_reference, AMOUNT_CENTS)  # its queue hands the order to the next payer


def _kill_a_worker(folder: Path, app: App, url: str) -> None:
    _arm(url, KILLED, KILLED.reference)
    _submit(app, url, KILLED)
    with worker(folder) as doomed:
        client.wait_until(url, KILLED.reference, "committed", timeout=_COMMITTED_SECONDS)
        doomed.kill()


def _pay(folder: Path, app: App, url: str, *, twice: bool) -> None:
    for payment in OTHERS:
        _arm(url, payment, payment.reference)
    if twice:
        client.arm(url, OTHERS[0].reference, "twice")
    for payment in OTHERS:
        _submit(app, url, payment)
    with worker(folder) as running:
        wait_for(lambda: _all_settled(app), "every payment is settled", running)


def _all_settled(app: App) -> bool:
    return all(app.get(payment.operation_id).status in SETTLED for payment in PAYMENTS)


def _submit(app: App, url: str, payment: Payment) -> None:
    app.submit("charge_card", {"order": payment.order, "amount_cents": AMOUNT_CENTS, "currency": "eur", "shop": url})


def _arm(url: str, payment: Payment, reference: str) -> None:
    if payment.mode is not None:
        client.arm(url, reference, payment.mode, seconds=payment.seconds, lose_answer=payment.lose_answer)


def _nothing_pending(url: str) -> bool:
    references = [name for payment in PAYMENTS for name in (payment.reference, payment.naive_reference)]
    return not any(client.find(url, reference)["pending"] for reference in references)


def _last_words(folder: Path) -> str:
    with contextlib.suppress(OSError):
        lines = (folder / "processes.log").read_text(errors="replace").splitlines()
        return "".join(f"\n{line}" for line in lines[-5:])
    return ""


def _tell_plainly(text: str) -> None:
    click.echo(f"settled demo: {text}", err=True)


@contextlib.contextmanager
def telling() -> Iterator[Tell]:
    """Tell people what is going on, on standard error: with a spinner on a terminal, by lines elsewhere."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _tell_plainly
        return
    from rich.console import Console  # only a terminal needs it

    console = Console(stderr=True)
    with console.status("starting the shop") as status:

        def tell(text: str) -> None:
            console.print(f"· {text}", highlight=False)
            status.update("a few seconds more")

        yield tell
