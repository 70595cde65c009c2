"""Write reports to files, checked before the work begins, and made whole or not at all."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import click


def check_writable(file: Path) -> None:
    """Refuse a report's file before the work, not after it. Raises UsageError; a file that is there stays as it is."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        there = file.exists()
        with file.open("a"):
            pass
        if not there:
            file.unlink()
    except OSError as error:
        raise click.UsageError(f"--output {file} cannot be written ({error.strerror}). Nothing was run") from error


def write_report(file: Path, forms: Mapping[str, str]) -> None:
    """Write the form that the file's suffix names, JSON for any other. Raises OSError."""
    made = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        made.write_text(forms.get(file.suffix.lower(), forms[".json"]), encoding="utf-8")
        os.replace(made, file)
    except OSError:
        made.unlink(missing_ok=True)
        raise
