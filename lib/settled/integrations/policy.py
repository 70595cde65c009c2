"""What may run, decided before anything is submitted.

Promise: a confirmation is an object that the trusted host made for one run, one tool and the exact arguments. It cannot be
written by a model, read from a task, or stored: in the next run, and after a restart, the host is asked again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from settled.core.canonical import canonical_text, fingerprint
from settled.core.errors import ConfigurationError
from settled.declared import label


class Verdict(StrEnum):
    """What the policy says of one call."""

    ALLOWED = "allowed"
    DENIED = "denied"
    CONFIRMATION_REQUIRED = "confirmation_required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The host's word that one call may be done. Make it with `Pending.confirm`."""

    run_id: str
    tool: str
    fingerprint: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A call that waits for the host's word. `arguments` are what the host shows to whoever decides."""

    run_id: str
    tool: str
    arguments: Any
    fingerprint: str
    operation_id: str | None = None

    def confirm(self, *, actor: str) -> Confirmation:
        """Return the confirmation of this very call. `actor` is recorded, not authenticated. Raises ValueError for a blank actor."""
        return Confirmation(run_id=self.run_id, tool=self.tool, fingerprint=self.fingerprint, actor=label(actor, "actor"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a run may do. `allow` names the tools (None: those that the host declared, and no others).

    `confirm` says whether a mutation needs the host's confirmation: True (the default), False, or a predicate on the tool's name
    and the arguments, which must answer with a bool; whatever else it answers, or raises, asks for one.
    """

    allow: Iterable[str] | None = None
    confirm: bool | Callable[[str, Any], bool] = True
    _allowed: frozenset[str] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        """Raise ConfigurationError for what cannot be meant."""
        if isinstance(self.allow, str):
            raise ConfigurationError(f"allow is a list of names, not the text {self.allow!r}")
        if self.allow is not None:
            names = frozenset(self.allow)
            if not all(type(name) is str for name in names):
                raise ConfigurationError(f"allow is a list of names of tools, not {self.allow!r}")
            object.__setattr__(self, "_allowed", names)
        if type(self.confirm) is not bool and not callable(self.confirm):
            raise ConfigurationError(f"confirm must be True, False or a predicate, not {self.confirm!r}")

    def decide(
        self, run_id: str, tool: str, arguments: Any, *, known: bool, mutation: bool, confirmations: Iterable[Confirmation] = ()
    ) -> Verdict:
        """Return what may happen to one call. `known`: the host declared the tool; `mutation`: it has an effect contract."""
        if not known or (self._allowed is not None and tool not in self._allowed):
            return Verdict.DENIED
        if not mutation or not self._must_be_confirmed(tool, arguments):
            return Verdict.ALLOWED
        given = confirming(confirmations, run_id, tool, arguments_fingerprint(arguments))
        return Verdict.CONFIRMATION_REQUIRED if given is None else Verdict.ALLOWED

    def _must_be_confirmed(self, tool: str, arguments: Any) -> bool:
        if not callable(self.confirm):
            return self.confirm
        try:
            return self.confirm(tool, arguments) is not False
        except Exception:  # noqa: BLE001 - a predicate that cannot judge a call has not allowed it
            return True


def confirming(confirmations: Iterable[Confirmation], run_id: str, tool: str, fingerprint: str) -> Confirmation | None:
    """Return the confirmation of this very call. Raises TypeError for anything that is no Confirmation, whatever it says."""
    found = None
    for one in confirmations:
        if type(one) is not Confirmation:
            raise TypeError(f"a confirmation is made by Pending.confirm, not {type(one).__name__}. Nothing was sent.")
        if (one.run_id, one.tool, one.fingerprint) == (run_id, tool, fingerprint):
            found = one
    return found


def arguments_fingerprint(arguments: Any) -> str:
    """Return the fingerprint of the exact arguments, prose included; of what is no strict JSON, that of nothing."""
    try:
        return fingerprint(canonical_text(arguments, "arguments"))
    except (TypeError, ValueError):
        return fingerprint("")
