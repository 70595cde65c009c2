"""Load a file's `run_safety_suite` and run it, sync or async. Whatever is wrong with the file is one sentence."""

import asyncio
import contextlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any, Final

import click

from settled.core.text import one_line, safe_str
from settled.testing.report import SafetyReport

FUNCTION: Final = "run_safety_suite"
_MODULE: Final = "settled_safety_suite"
_REASON_MAX: Final = 300


def run_file(path: Path) -> SafetyReport:
    """Return the report of a file. Raises UsageError for a file that gives none; nothing it prints reaches standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        suite = _load(path)
        try:
            answer = suite()
            if inspect.isawaitable(answer):
                answer = asyncio.run(_awaited(answer))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a suite may raise anything, SystemExit included
            raise click.UsageError(f"{FUNCTION} in {path} failed: {_said(error)}. It gave no report") from error
    if type(answer) is not SafetyReport:
        raise click.UsageError(f"{FUNCTION} in {path} returned {type(answer).__name__}, not a settled.testing.SafetyReport")
    return answer


async def _awaited(answer: Any) -> Any:
    return await answer


def _load(path: Path) -> Any:
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # a suite may import what lies beside it
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{path} is not a Python file. Nothing was run")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise click.UsageError(f"{path} cannot be imported: {_said(error)}. Nothing was run") from error
    suite = getattr(module, FUNCTION, None)
    if not callable(suite):
        raise click.UsageError(f"{path} has no function {FUNCTION}(). Nothing was run")
    if not _takes_nothing(suite):
        raise click.UsageError(f"{FUNCTION} in {path} must take no arguments. Nothing was run")
    return suite


def _takes_nothing(suite: Any) -> bool:
    try:
        inspect.signature(suite).bind()
    except (TypeError, ValueError):
        return False
    return True


def _said(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {safe_str(error)}", _REASON_MAX)
