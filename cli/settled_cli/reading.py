"""Read what people type for JSON, files and standard input, strictly."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from settled.core.canonical import parse_strict_json
from settled.core.limits import DEFAULTS


def read_json(text: str, name: str) -> Any:
    """Parse strict JSON. Raises UsageError."""
    try:
        return parse_strict_json(text, name)
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"{name} is not strict JSON: {error}. Nothing was changed") from error


def read_source(given: str, name: str) -> str:
    """Return the text itself, of @FILE, or of standard input for `-`. Raises UsageError; reads no more than a request may hold."""
    if given == "-":
        if sys.stdin is None:
            raise click.UsageError(f"{name} is -, but standard input is closed. Nothing was changed")
        return _bounded(sys.stdin.read(DEFAULTS.arguments_bytes_max + 1), name)
    if not given.startswith("@"):
        return given
    try:
        with Path(given[1:]).open(encoding="utf-8") as file:
            return _bounded(file.read(DEFAULTS.arguments_bytes_max + 1), name)
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{name} cannot be read from {given[1:]}: {error}. Nothing was changed") from error


def read_time(text: str, name: str) -> datetime:
    """Parse a time with a zone, ISO 8601. Raises UsageError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"{name} is not a time like 2026-11-30T09:40:00Z. Nothing was changed") from error
    if moment.tzinfo is None:
        raise click.UsageError(f"{name} says no zone. Nothing was changed. Write it like 2026-11-30T09:40:00Z")
    return moment


def _bounded(text: str, name: str) -> str:
    if len(text) > DEFAULTS.arguments_bytes_max:
        raise click.UsageError(f"{name} is longer than {DEFAULTS.arguments_bytes_max} bytes. Nothing was changed")
    return text
