"""Say how the local code ended, and in which words that may be stored. An error says nothing about the provider's side.

Promise: every exception ends as RAISED except the three that a handler raises on purpose, and what is kept of it is one
bounded line that went through the configured redaction first.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from settled.core.errors import EffectRejected, NeedsReview, NotSent
from settled.core.text import MESSAGE_UNAVAILABLE, one_line, safe_str
from settled.execution.context import AttemptRevoked
from settled.execution.job import End, Job, Kind, Redact

_CLASS_NAME_MAX = 200
_INTERRUPTS: Final = (KeyboardInterrupt, SystemExit, asyncio.CancelledError)


class Verdict(NamedTuple):
    """The part of a Report that an exception decides."""

    end: End
    error_class: str
    error_text: str | None
    retryable: bool


def keep_text(text: str) -> str:
    """The redaction that redacts nothing."""
    return text


def judge_error(error: BaseException, job: Job, *, sending: bool, redact: Redact = keep_text) -> Verdict:
    """Return how `error` ends the run. `sending` says that ctx.sending() had been passed."""
    return Verdict(_end_of(error, job, sending), class_name(error), error_text(error, job, redact), _is_retryable(error))


def class_name(error: BaseException) -> str:
    """Return the name of the error's class as one bounded line."""
    return one_line(type(error).__name__, _CLASS_NAME_MAX)


def interrupt_in(error: BaseException) -> str | None:
    """Return the class of the cancellation or exit that `error` is or, as a group, holds first; a caller has to pass it on."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := interrupt_in(one))), None)
    return next((kind.__name__ for kind in _INTERRUPTS if isinstance(error, kind)), None)


def error_text(error: BaseException, job: Job, redact: Redact = keep_text) -> str | None:
    """Return the error as one line of at most `job.error_text_max` characters, or None where its text may not be stored."""
    return bounded_text(safe_str(error), job.error_text_max, redact) if job.store_error_text else None


def bounded_text(text: str, characters_max: int, redact: Redact = keep_text) -> str:
    """Return `text` redacted, on one line, and only then cut: half a secret matches no pattern."""
    try:
        return one_line(redact(text), characters_max)
    except BaseException:  # noqa: BLE001 - an unredacted text is never the way out of a failed redaction
        return MESSAGE_UNAVAILABLE


def _end_of(error: BaseException, job: Job, sending: bool) -> End:
    if job.kind is Kind.PROBE:
        return End.RAISED  # a probe rejects nothing and sends nothing: whatever it raises is no answer
    if isinstance(error, EffectRejected):
        return End.REJECTED
    if isinstance(error, NotSent | AttemptRevoked):
        return End.RAISED if sending else End.NOT_SENT
    if isinstance(error, NeedsReview):
        return End.NEEDS_REVIEW
    return End.RAISED


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, EffectRejected) and getattr(error, "retryable", False) is True
