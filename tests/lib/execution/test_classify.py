"""How an exception ends an attempt, and what of its text is kept."""

import asyncio
import re
from typing import Any

import pytest

from settled.core.errors import EffectRejected, NeedsReview, NotSent
from settled.core.text import make_redactor
from settled.execution.classify import bounded_text, judge_error
from settled.execution.context import AttemptRevoked, Context, Marks, ProbeContext
from settled.execution.job import End, Kind
from tests.lib.execution.inprocess import make_job


class TwoArguments(Exception):
    """Cannot be rebuilt from its args, as pickle would."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.lock = object()
        self.second = second


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Rude(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class Refused(EffectRejected):
    """A handler's own kind of rejection."""


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (EffectRejected("no"), End.REJECTED),
        (Refused("no"), End.REJECTED),
        (NotSent("dns"), End.NOT_SENT),
        (AttemptRevoked("op", 1, "late"), End.NOT_SENT),
        (NeedsReview("odd"), End.NEEDS_REVIEW),
        (TimeoutError(), End.RAISED),
        (ConnectionResetError(), End.RAISED),
        (ValueError(), End.RAISED),
        (TwoArguments("a", "b"), End.RAISED),
        (SystemExit(0), End.RAISED),
        (KeyboardInterrupt(), End.RAISED),
        (GeneratorExit(), End.RAISED),
        (asyncio.CancelledError(), End.RAISED),
        (BaseExceptionGroup("g", [asyncio.CancelledError()]), End.RAISED),
        (ExceptionGroup("g", [EffectRejected("inside a group it is no statement of the whole handler")]), End.RAISED),
    ],
)
def test_only_the_three_deliberate_errors_are_more_than_raised(error: BaseException, end: End) -> None:
    verdict = judge_error(error, make_job(), sending=False)
    assert (verdict.end, verdict.error_class) == (end, type(error).__name__)


@pytest.mark.parametrize("error", [NotSent("no"), AttemptRevoked("op", 1, "late")])
def test_nothing_was_sent_is_not_believed_after_sending(error: BaseException) -> None:
    assert judge_error(error, make_job(), sending=True).end is End.RAISED


def test_a_rejection_in_a_probe_is_only_an_error() -> None:
    assert judge_error(EffectRejected("no"), make_job(kind=Kind.PROBE), sending=False).end is End.RAISED


@pytest.mark.parametrize(("retryable", "kept"), [(True, True), (False, False)])
def test_a_rejection_says_whether_it_may_be_retried(retryable: bool, kept: bool) -> None:
    assert judge_error(EffectRejected("no", retryable=retryable), make_job(), sending=False).retryable is kept
    broken = EffectRejected("no")
    broken.retryable = 1  # type: ignore[assignment]
    assert judge_error(broken, make_job(), sending=False).retryable is False


@pytest.mark.promise("D04")
def test_an_error_is_stored_as_one_bounded_line_redacted_before_the_cut() -> None:
    redact = make_redactor([re.compile(r"sk_live_\w+")])
    secret = "x" * 490 + " sk_live_" + "a" * 40
    job = make_job()
    text = judge_error(ValueError(secret), job, sending=False, redact=redact).error_text
    assert text is not None and len(text) <= 500 and "sk_live" not in text and "***" in text
    text = judge_error(ValueError("one\ntwo\x1b[31m\u202ethree\ud800"), job, sending=False).error_text
    assert text is not None and text.isprintable() and text.encode()
    text = judge_error(ValueError("y" * 10_000_000), job, sending=False).error_text
    assert text is not None and len(text) == 500
    for silent in (Mute(), Rude()):
        assert judge_error(silent, job, sending=False).error_text == "error message unavailable"
    assert judge_error(ValueError("private"), make_job(store_error_text=False), sending=False)[1:3] == ("ValueError", None)


def test_a_redaction_that_fails_lets_nothing_through() -> None:
    def broken(text: str) -> str:
        raise RuntimeError

    assert bounded_text("secret", 500, broken) == "error message unavailable"


@pytest.mark.parametrize("value", ["", "  ", None, 7, b"x", "a" * 501, "\ud800", "pay\n1", " pay-1"])
def test_a_provider_operation_id_that_cannot_be_one_is_refused_and_not_kept(value: Any) -> None:
    marks = Marks()
    with pytest.raises(ValueError, match="not kept"):
        Context(make_job(), marks).report(provider_operation_id=value)
    assert marks.provider_operation_id is None


def test_a_reported_id_leaves_at_once() -> None:
    sent: list[str] = []
    marks = Marks()
    Context(make_job(), marks, on_report=sent.append).report(provider_operation_id="pay-1")
    assert (sent, marks.provider_operation_id) == (["pay-1"], "pay-1")


def test_ctx_shows_the_facts_of_its_attempt_and_a_probe_s_has_no_way_to_act() -> None:
    job = make_job(timeout_seconds=30)
    for ctx in (Context(job, Marks()), ProbeContext(job)):
        assert (ctx.operation_id, ctx.attempt, ctx.idempotency_key, ctx.provider_reference) == (job.operation_id, 1, "key-1", "ref-1")
        assert 0 < ctx.time_remaining() <= 30
        ctx.log.debug("handler.note")
    assert not hasattr(ProbeContext(job), "sending") and not hasattr(ProbeContext(job), "report")
    assert ProbeContext(make_job(timeout_seconds=-1)).time_remaining() == 0


def test_sending_is_contested_once_and_only_where_the_contract_announces_it() -> None:
    asked: list[int] = []

    def ask() -> bool:
        asked.append(1)
        return True

    Context(make_job(), Marks(), ask_sending=ask).sending()
    assert asked == []
    ctx = Context(make_job(announces_sending=True), Marks(), ask_sending=ask)
    ctx.sending()
    ctx.sending()
    assert asked == [1]
    marks = Marks()
    with pytest.raises(AttemptRevoked):
        Context(make_job(announces_sending=True), marks, ask_sending=lambda: False).sending()
    with pytest.raises(AttemptRevoked):
        Context(make_job(), marks, given_up=lambda: True).sending()
    assert marks.sending is False
