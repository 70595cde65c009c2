"""Say how a command ended: one sentence on standard error, and the exit code that belongs to it."""

import sys
from typing import Final

import click

from settled.core.errors import SettledError
from settled.core.text import escape_controls, safe_str

_UNEXPECTED: Final = 1


def say_end(error: Exception) -> int:
    """Print what ended the command; return its exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    text, code = _sentence(error)
    say(text)
    return code


def say(text: str) -> None:
    """Print one sentence about the command. Several lines stay lines, whatever else others put into them is escaped."""
    if sys.stderr is None:
        return
    shown = "\n".join(escape_controls(line) for line in text.splitlines())
    try:
        click.echo(f"settled: {shown}", err=True)
    except OSError:
        return  # nobody listens; the exit code says it


def _sentence(error: Exception) -> tuple[str, int]:
    if isinstance(error, SettledError):
        return safe_str(error), error.exit_code
    if isinstance(error, click.UsageError):
        see = f" See: {error.ctx.command_path} --help" if error.ctx is not None else ""
        said = error.format_message()
        if isinstance(error, click.MissingParameter):
            said = " ".join(said.split())  # its list of choices is a line each
        return (said if said.endswith("?") else f"{said.rstrip('.')}.") + see, error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename else ""
        return f"{named}{error.strerror or safe_str(error)}. The command did not finish.", _UNEXPECTED
    return (
        f"{type(error).__name__}: {safe_str(error)}. This is a mistake in settled, the command did not finish. "
        f"To see where it happened, run it again with PYTHONDEVMODE=1"
    ), _UNEXPECTED
