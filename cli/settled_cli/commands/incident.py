"""`settled incident`: everything that is known of one operation, for those who look into it afterwards."""

import os
from pathlib import Path

import click

from settled_cli.invocation import Invocation, Refused, Verbs
from settled_cli.opening import open_app
from settled_cli.postmortem import collect
from settled_cli.render import to_text, write
from settled_cli.verdict import say


@click.group(cls=Verbs)
def incident() -> None:
    """Take along everything that is known of one operation."""


@incident.command()
@click.argument("operation_id")
@click.option("--output", "file", metavar="FILE", type=click.Path(path_type=Path), help="Write it there. Never replaces a file.")
@click.pass_obj
def export(invocation: Invocation, operation_id: str, file: Path | None) -> None:
    """Print one JSON for a post-mortem: no arguments, no output, sensitive fields masked, texts redacted."""
    text = to_text(collect(open_app(invocation), operation_id))
    if file is None:
        write(text)
        return
    _write_new(file, text)
    say(f"written to {file}, readable by you alone")


def _write_new(file: Path, text: str) -> None:
    """Write a file that was not there, whole or not at all. Raises Refused where it is there, UsageError where it cannot be made."""
    try:
        with open(file, "x", encoding="utf-8", opener=_private) as made:
            try:
                made.write(text)
                made.flush()
            except BaseException:
                file.unlink()
                raise
    except FileExistsError:
        raise Refused(f"{file} is there already. Nothing was written. Name another file with --output") from None
    except OSError as error:
        raise click.UsageError(f"--output {file} cannot be written ({error.strerror}). Nothing was written") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
