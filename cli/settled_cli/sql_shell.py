"""Read a ledger with SQL through the one SQLite library that may open it, so that no lock of a live worker is lost.

Promise: nothing is written, here or elsewhere; SQLite itself refuses it, and the exit code is then that of a refusal.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from settled.core.limits import DEFAULTS
from settled.store.engine import check_library, check_place, check_readable, refuse_affected_wal
from settled.store.failures import REFUSED, is_not_a_database, not_a_database, primary_code, translate
from settled.store.sqlite_library import sqlite_module
from settled_cli.asking import at_terminal
from settled_cli.invocation import Invocation, Refused
from settled_cli.render import emit
from settled_cli.verdict import say


def run_shell(invocation: Invocation, path: Path, sql: str | None) -> int:
    """Run one statement, or those of standard input; return the exit code. A statement that fails ends it, but not at a terminal."""
    check_place(path)
    check_readable(path)
    refuse_affected_wal(path)
    module = sqlite_module()
    connection = None
    try:
        where, patience = f"file:{quote(str(path))}?mode=ro", DEFAULTS.busy_timeout_seconds
        connection = module.connect(where, uri=True, isolation_level=None, timeout=patience)
        connection.execute("PRAGMA query_only=ON")
        # An attached file would be another database, open for writing; VACUUM INTO attaches one, too.
        connection.set_authorizer(lambda action, *_: module.SQLITE_DENY if action == module.SQLITE_ATTACH else module.SQLITE_OK)
        check_library(str(connection.execute("PRAGMA journal_mode").fetchone()[0]).lower(), path, module)
        for statement in [sql] if sql is not None else _statements():
            code = _run(invocation, module, connection, path, statement)
            if code and (sql is not None or not at_terminal()):
                return code
        return 0
    except module.Error as error:
        raise (not_a_database(path) if is_not_a_database(error) else translate(error, path) or error) from error
    finally:
        if connection is not None:
            connection.close()


def _statements() -> Iterator[str]:
    if sys.stdin is None:
        return
    while True:
        if at_terminal():
            click.echo("sql> ", err=True, nl=False)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line


def _run(invocation: Invocation, module: Any, connection: Any, path: Path, statement: str) -> int:
    """Run a statement; return its exit code. Raises LedgerUnavailableError and LedgerDamagedError: then the statement is not at fault."""
    try:
        cursor = connection.execute(statement)
        if cursor.description is None:
            return 0
        names = _unique([column[0] for column in cursor.description])
        rows = [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchmany(DEFAULTS.list_max)]
        emit(invocation, rows, names)
        if len(rows) == DEFAULTS.list_max and cursor.fetchone() is not None:
            say(f"only the first {DEFAULTS.list_max} rows are shown")
        return 0
    except (module.Error, module.Warning) as error:
        if primary_code(error) in REFUSED:
            say(f"refused: {error}. Nothing was changed")
            return Refused.exit_code
        if (trouble := translate(error, path)) is not None:
            raise trouble from error
        say(f"the statement cannot be run: {error}. Nothing was changed")
        return click.UsageError.exit_code


def _unique(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return made


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
