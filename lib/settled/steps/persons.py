"""Who acts: what a person claims, whom the system or the host says it is, and what was said.

Promise: two persons are told apart by `principal`, never by the name that somebody types.
"""

import os
import pwd
from typing import NamedTuple

from settled.core.decide_operator import Decision
from settled.core.errors import NotAuthenticatedError, SettledError
from settled.core.limits import DEFAULTS
from settled.core.text import safe_str
from settled.shell import Shell


class Person(NamedTuple):
    """Who the system says is acting, and by what two persons are told apart."""

    os_user: str
    principal: str


def who_acts(shell: Shell) -> Person:
    """Return who acts in this process now. Raises NotAuthenticatedError where the host's authenticator names nobody."""
    seen = os_user()
    if shell.authenticator is None:
        return Person(seen, f"os:{_believed(shell)}")
    try:
        named = shell.authenticator()
    except SettledError:
        raise
    except Exception as error:
        raise NotAuthenticatedError(f"{type(error).__name__}: {safe_str(error)}"[: DEFAULTS.error_text_max]) from error
    if type(named) is not str or not named.strip():
        raise NotAuthenticatedError("the authenticator named nobody")
    return Person(seen, note_text(named, "the authenticated name"))


def os_user() -> str:
    """Return who the system says is acting: behind sudo, who called it."""
    name, behind = _account(), os.environ.get("SUDO_USER")
    return f"{behind} (as {name})" if behind and behind != name else name


def said_by(actor: object, reason: object) -> tuple[str, str]:
    """Return a person's name and reason. Raises ValueError where one of them is blank."""
    return note_text(actor, "actor"), note_text(reason, "reason")


def decision_of(shell: Shell, actor: object, reason: object, evidence_reference: object, expected_version: object) -> Decision:
    """Return a checked decision. Raises TypeError for a version that is no int, ValueError for blank texts."""
    if type(expected_version) is not int:
        raise TypeError(f"expected_version must be the version that was seen, an int, not {expected_version!r}")
    said = note_text(actor, "actor"), note_text(reason, "reason"), note_text(evidence_reference, "evidence_reference")
    person = who_acts(shell)
    return Decision(
        actor=said[0],
        reason=said[1],
        evidence_reference=said[2],
        expected_version=expected_version,
        os_user=person.os_user,
        principal=person.principal,
    )


def note_text(value: object, what: str) -> str:
    """Return what a person said, without the space around it. Raises ValueError where it is blank, too long or no Unicode text."""
    if type(value) is not str or not value.strip():
        raise ValueError(f"{what} must not be blank. Nothing was changed.")
    if len(value) > DEFAULTS.note_text_max:
        raise ValueError(f"{what} is longer than {DEFAULTS.note_text_max} characters. Nothing was changed. Name a place where more stands.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{what} holds a lone surrogate, which is not Unicode text. Nothing was changed.")
    return value.strip()


def _account() -> str:
    """Return the name of the account, from the system: LOGNAME and USER say what anybody put there."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _believed(shell: Shell) -> str:
    """Return the account, or who stands behind sudo where that is believed.

    Anybody may set SUDO_USER. It counts where the process runs as root or as the owner of the ledger, which could rewrite the
    ledger anyway, so that believing it gives nothing away.
    """
    behind = os.environ.get("SUDO_USER", "").strip()
    try:
        powerful = os.getuid() in (0, shell.ledger.path.stat().st_uid)
    except FileNotFoundError:
        powerful = True  # whoever puts a ledger where there is none owns it
    return behind if behind and powerful else _account()
