"""What an audit found wrong, and a way to look at damaged rows that lets one bad row never hide the next."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from settled.core.errors import LedgerStateError


class Finding(NamedTuple):
    """One thing that is not as the ledger's own rules make it. Without an operation ID it is about the ledger as a whole."""

    operation_id: str | None
    sequence: int | None
    problem: str


class Findings(list[Finding]):
    """Findings up to a limit; `full` says that there may be more."""

    def __init__(self, findings_max: int) -> None:
        super().__init__()
        self._findings_max = findings_max

    @property
    def full(self) -> bool:
        return len(self) >= self._findings_max

    def add(self, problem: str, operation_id: str | None = None, sequence: int | None = None) -> None:
        if not self.full:
            self.append(Finding(operation_id, sequence, problem))

    @contextmanager
    def instead_of_errors(self, module: Any, what: str, operation_id: str | None = None) -> Iterator[None]:
        """Turn an error about stored content into a finding. What makes the store unusable is still raised."""
        try:
            yield
        except LedgerStateError as error:
            self.add(str(error), operation_id)
        except module.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", None)
            # No code: the driver could not decode a text. 11: the pages are damaged. All else is about the store, not its content.
            if code is not None and code & 0xFF != 11:
                raise
            self.add(f"{what} cannot be read: {error}", operation_id)
