"""`settled unit`: print the files of the service, or put them in place."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

import settled
from settled.config import Settings
from settled.core.errors import ConfigurationError
from settled_cli.installing import Installation, instance_name, next_steps
from settled_cli.invocation import Invocation, Refused, Verbs
from settled_cli.render import emit, write
from settled_cli.unit_files import NAMES, hidden, render
from settled_cli.verdict import say

_ACCOUNT: Final = "settled"


@click.group(cls=Verbs)
def unit() -> None:
    """Print the files of the service, or put them in place."""


_user = click.option("--user", "for_user", is_flag=True, help="For a service of this user, without root and with less of a sandbox.")
_path = click.option("--settled", "command", metavar="PATH", help="The command that the unit starts. Default: this one.")
_account = click.option("--run-as", "account", metavar="USER", default=_ACCOUNT, show_default=True, help="The user of the workers.")
_group = click.option("--group", metavar="G", help="The group of the workers, whose members may share a ledger. Default: as --run-as.")


@unit.command("print")
@click.argument("name", type=click.Choice(NAMES), default=NAMES[0])
@_user
@_path
@_account
@_group
@click.pass_obj
def print_unit(invocation: Invocation, name: str, for_user: bool, command: str | None, account: str, group: str | None) -> None:
    """Print one file of the service. Nothing is written."""
    found = render(settled=command or str(this_command()), user=account, group=group or account, for_user=for_user)
    one = next((each for each in found if each.name == name), None)
    if one is None:
        raise click.UsageError(f"a service of a user has no {name}")
    if invocation.for_programs:
        emit(invocation, one._asdict())
    else:
        write(one.text)


@unit.command()
@click.argument("name", required=False)
@_user
@_path
@_account
@_group
@click.option("--app", metavar="MODULE:APP", help="Your contracts and handlers, for the settings file of NAME.")
@click.option("--force", is_flag=True, help="Replace files that were edited.")
@click.option("--root", type=click.Path(file_okay=False, path_type=Path), help="Write below this folder and run nothing, for packages.")
@click.pass_obj
def install(
    invocation: Invocation,
    name: str | None,
    for_user: bool,
    command: str | None,
    account: str,
    group: str | None,
    app: str | None,
    force: bool,
    root: Path | None,
) -> None:
    """Put the files of the service in place, and a settings file for NAME where there is none.

    A file that was edited is not overwritten: at a terminal you are asked, elsewhere nothing is written and the exit code is 4.
    """
    instance = None if name is None else instance_name(name)
    if app is not None and instance is None:
        raise click.UsageError("--app goes into the settings file of an instance: name one, for example: settled unit install main")
    if app is not None:
        _check_app(app)
    if command is None and not for_user:
        _refuse_hidden()
    made = render(settled=command or str(this_command()), user=account, group=group or account, for_user=for_user)
    installation = Installation.prepare(root=root, for_user=for_user, account=account)
    with _writable():
        edited = installation.edited(made)
        if edited and not force:
            _ask_about(edited)
        rows = installation.put(made)
        if instance is not None:
            rows.append(installation.settings(instance, app))
    emit(invocation, rows, ("file", "done"))
    for note in installation.activate():
        say(note)
    for step in next_steps(instance, app, group or account, installation):
        say(step)


def this_command() -> Path:
    """Return the absolute path of `settled` beside the interpreter that runs this."""
    return Path(sys.executable).absolute().with_name("settled")


def _check_app(app: str) -> None:
    try:
        Settings(app=app)
    except ValueError:
        raise click.UsageError(f"--app {app!r} is not of the form MODULE:APP, for example shop.effects:app") from None


@contextmanager
def _writable() -> Iterator[None]:
    """Say of a place that cannot be read or written that it is the wrong one."""
    try:
        yield
    except OSError as error:
        raise click.UsageError(
            f"{error.filename or 'a file'} cannot be read or written ({error.strerror}). It was left as it is; what was written before it "
            f"is whole. Run it as somebody who may, or name another folder with --root"
        ) from error


def _refuse_hidden() -> None:
    here = Path(sys.executable).absolute()
    lost = hidden([here, Path(sys.base_prefix), Path(settled.__file__)])
    if lost is not None:
        raise ConfigurationError(
            f"{lost} lies in a folder that the unit hides from the worker (ProtectHome, PrivateTmp). Nothing was written. "
            f"Install settled into a virtual environment that /usr/bin/python3 made, for example in /opt/settled, and call that one; "
            f"or name it with --settled; or install a service of this user: settled unit install --user"
        )


def _ask_about(edited: list[Path]) -> None:
    named = ", ".join(map(str, edited))
    if not sys.stdin.isatty():
        raise Refused(
            f"{named} was edited since it was installed. Nothing was written. "
            f"Move your changes to a drop-in (systemctl edit), then run it again with --force"
        )
    click.confirm(f"{named} was edited since it was installed. Overwrite it?", abort=True, err=True)
