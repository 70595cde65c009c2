"""Every error the project raises on purpose. Each takes facts, writes its own sentence and says what to do next."""

from typing import Any, Literal

Differs = Literal["contract", "version", "request", "provider key", "provider reference"]


class SettledError(Exception):
    """Base of all errors of this project. `exit_code` is what the command line ends with."""

    exit_code = 1


class ConfigurationError(SettledError):
    """Something about this process or its settings is wrong, and retrying will not help."""

    exit_code = 78


class PayloadKeyError(ConfigurationError):
    """A stored text is encrypted with a key that is not known here, or not the one that its ID stands for here."""

    def __init__(self, key_id: str, known: tuple[str, ...], *, wrong: bool = False) -> None:
        here = f"the keys known here are {', '.join(known)}" if known else "no key is known here"
        problem = "the key of that ID here is another one" if wrong else here
        super().__init__(
            f"a stored text is encrypted with the key {key_id!r}: {problem}. It was left alone and nothing was changed. "
            f"Give that key: encryption.keys_file in the settings"
        )
        self.key_id, self.known, self.wrong = key_id, known, wrong


class SchemaMismatchError(ConfigurationError):
    """The ledger's schema is not the one that this version reads and writes."""

    def __init__(self, found: str | None, expected: str, path: str, *, leads_here: bool = True) -> None:
        if found is None:
            text = f"the file {path} is not a ledger of settled. Nothing was changed. Give the path of a ledger."
        else:
            older = "Run: settled db upgrade" if leads_here else "Use the settled that made it."
            todo = "Use the newer settled that made it." if found > expected else older
            text = f"the ledger {path} has schema revision {found}, this version needs {expected}. Nothing was changed. {todo}"
        super().__init__(text)
        self.found, self.expected, self.path = found, expected, path


class LedgerUnavailableError(SettledError):
    """The ledger could not be read or written just now. Trying again is safe: submissions are insert-or-return."""

    exit_code = 75

    def __init__(
        self,
        message: str,
        *,
        operation_id: str | None = None,
        attempt: int | None = None,
        observed: str | None = None,
        output: Any = None,
        provider_operation_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.operation_id, self.attempt, self.observed = operation_id, attempt, observed
        self.output, self.provider_operation_id = output, provider_operation_id


class LedgerForbiddenError(LedgerUnavailableError, ConfigurationError):
    """This user may not use the ledger's file as it must be used. Trying again is safe, and vain before its mode is set."""

    exit_code = 78


class LedgerStateError(SettledError):
    """A stored row is corrupt. It is never interpreted."""

    exit_code = 1
    operation_id: str | None

    def __init__(self, operation_id: str, column: str, problem: str) -> None:
        super().__init__(
            f"operation {operation_id!r} has an impossible value in {column}: {problem}. It was left alone; "
            f"nothing was sent. Run: settled db check"
        )
        self.operation_id, self.column = operation_id, column


class LedgerDamagedError(LedgerStateError):
    """The file of the ledger is damaged: what SQLite says of it is `problem`. Whatever it holds is not interpreted."""

    def __init__(self, path: str, problem: str) -> None:
        SettledError.__init__(
            self,
            f"the ledger {path} is damaged ({problem}). Nothing was recorded, and nothing of it is to be believed before a person has "
            f"looked. Stop the workers, keep a copy of the file, then restore a backup: settled db restore",
        )
        self.operation_id, self.column, self.path, self.problem = None, "the file", path, problem


class OperationNotFoundError(SettledError):
    """No operation has this ID."""

    exit_code = 3

    def __init__(self, operation_id: str) -> None:
        super().__init__(f"no operation has the ID {operation_id!r}. Nothing was changed. See: settled op list")
        self.operation_id = operation_id


class ContractNotFoundError(SettledError):
    """No contract of this name is registered here, nor listed by a live worker."""

    exit_code = 3

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        listed = f" Known here: {', '.join(sorted(known))}." if known else ""
        super().__init__(f"no contract is named {name!r}.{listed} Nothing was changed.")
        self.name, self.known = name, known


class QueueNotFoundError(SettledError):
    """No contract and no operation uses a queue of this name."""

    exit_code = 3

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        listed = f" Known here: {', '.join(sorted(known))}." if known else ""
        super().__init__(f"no queue is named {name!r}.{listed} Nothing was changed.")
        self.name, self.known = name, known


class PauseRefusedError(SettledError):
    """What was to be resumed is not paused, or is not for a resume to reopen."""

    exit_code = 4


class OperationConflictError(SettledError):
    """The operation ID already belongs to another request."""

    exit_code = 4

    def __init__(
        self,
        operation_id: str,
        differs: Differs,
        *,
        existing_fingerprint: str | None = None,
        requested_fingerprint: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(
            f"operation {operation_id!r} exists with a different {differs}. Nothing was sent. "
            f"Use a new operation ID for a new business action. See: settled op show {operation_id}"
        )
        self.operation_id, self.differs, self.index = operation_id, differs, index
        self.existing_fingerprint, self.requested_fingerprint = existing_fingerprint, requested_fingerprint


class OperationInProgressError(SettledError):
    """The operation is being dispatched right now, so that the call cannot mean anything yet."""

    exit_code = 4

    def __init__(self, operation_id: str, attempt: int) -> None:
        super().__init__(
            f"operation {operation_id!r} is in progress (attempt {attempt}). Nothing was changed. "
            f"Wait for it: settled op wait {operation_id}"
        )
        self.operation_id, self.attempt = operation_id, attempt


class TransitionRefusedError(SettledError):
    """The transition table, a guard or a person's stale view forbids the move."""

    exit_code = 4

    def __init__(self, operation_id: str, status: str, wanted: str, why: str, then: str = "") -> None:
        super().__init__(
            f"operation {operation_id!r} is {status}: {wanted} is refused, {why}. Nothing was changed. "
            + (then or f"See: settled op explain {operation_id}")
        )
        self.operation_id, self.status, self.wanted, self.why = operation_id, status, wanted, why


class NotAuthenticatedError(SettledError):
    """The host could not tell who acts, so that nobody's decision is recorded."""

    exit_code = 4

    def __init__(self, why: str) -> None:
        super().__init__(f"who acts could not be authenticated: {why}. Nothing was changed. Sign in as yourself, then decide again.")
        self.why = why


class UnresolvedError(SettledError):
    """The outcome is not known yet, so that there is no result to read."""

    exit_code = 1

    def __init__(self, operation_id: str, status: str) -> None:
        super().__init__(
            f"operation {operation_id!r} is {status}: its outcome is not confirmed. Do not repeat it. "
            f"Wait for it: settled op wait {operation_id}"
        )
        self.operation_id, self.status = operation_id, status


class EffectFailedError(SettledError):
    """The effect surely did not happen."""

    exit_code = 1

    def __init__(self, operation_id: str, status: str, error: str | None) -> None:
        because = f": {error}" if error else ""
        super().__init__(f"operation {operation_id!r} is {status}{because}. The effect did not happen.")
        self.operation_id, self.status, self.error = operation_id, status, error


class ResultUnavailableError(SettledError):
    """The effect is confirmed, but its output was not kept, was purged, or cannot be tied to it."""

    exit_code = 1

    def __init__(self, operation_id: str, why: str) -> None:
        super().__init__(
            f"operation {operation_id!r} is confirmed, but its output is not available: {why}. "
            f"The effect must not be repeated."
        )
        self.operation_id, self.why = operation_id, why


# What a handler raises on purpose.


class EffectRejected(Exception):
    """The destination surely refused: there was no effect and there will be none.

    `retryable` says that another attempt may succeed; it must be exactly a bool.
    """

    def __init__(self, message: str = "", *, retryable: bool = False) -> None:
        if type(retryable) is not bool:
            raise TypeError(f"retryable must be True or False, not {retryable!r}")
        super().__init__(message)
        self.retryable = retryable


class NotSent(Exception):
    """Nothing left this machine: the handler proves that it failed before it sent anything."""


class NeedsReview(Exception):
    """The handler saw something that a person must judge. The outcome stays unknown."""
