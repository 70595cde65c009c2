"""The snapshot of an operation: told field by field from what was read, and in every other way a plain frozen record."""

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from types import MappingProxyType
from typing import Any

import pytest

from settled import Operation, Outcome, Status
from settled.core.moment import at
from settled.core.row import STATE_COLUMNS, Row
from settled.core.words import NextAction
from settled.operation import snapshot

NOW_US = 1_800_000_000_000_000


def a_row(**changes: Any) -> Row:
    values: dict[str, Any] = dict.fromkeys(STATE_COLUMNS) | {
        "id": 1, "operation_id": "op-1", "contract": "charge", "contract_version": "1", "queue": "default", "risk": "high",
        "fingerprint": "json1:00", "provider_key": "key-1", "provider_reference": "ref-1", "derived": 1, "priority": 3,
        "deadline_us": NOW_US + 2, "created_us": NOW_US, "status": Status.PREPARED, "due_us": NOW_US + 1, "attempt": 0, "version": 1,
        "sequence": 1, "open_attempts": 0, "duplicate_suspected": 0, "updated_us": NOW_US, "chain": b"",
    }  # fmt: skip
    return Row(**values | changes)


def the_operation(**changes: Any) -> Operation:
    """Return what the snapshot of that row must be, every field said."""
    values: dict[str, Any] = {
        "operation_id": "op-1", "contract": "charge", "contract_version": "1", "status": Status.PREPARED, "outcome": None,
        "in_progress": False, "created": True, "attempts": 0, "version": 1, "reason": None, "next_action": NextAction.WAIT,
        "error": None, "provider_operation_id": None, "provider_reference": "ref-1", "duplicate_suspected": False,
        "fingerprint": "json1:00", "queue": "default", "risk": "high", "priority": 3, "created_at": at(NOW_US),
        "updated_at": at(NOW_US), "due_at": at(NOW_US + 1), "deadline": at(NOW_US + 2), "waits_for": "dispatch",
    }  # fmt: skip
    return Operation(**values | changes)


def test_a_snapshot_tells_every_field() -> None:
    assert snapshot(a_row(), created=True) == the_operation()
    assert repr(snapshot(a_row(), created=True)) == repr(the_operation())
    row = a_row(
        status=Status.CONFIRMED, attempt=2, version=4, reason="budget", due_us=None, deadline_us=None, error="OSError: x",
        provider_operation_id="ch_1", duplicate_suspected=1, updated_us=NOW_US + 9, open_attempts=1,
    )  # fmt: skip
    told = snapshot(row, output_text="[1]", metadata_text='{"a":1}', reconciling=True, unreadable="no key")
    expected = the_operation(
        status=Status.CONFIRMED, outcome=Outcome.CONFIRMED, created=False, attempts=2, version=4, reason="budget",
        next_action=NextAction.USE_RESULT, due_at=None, deadline=None, error="OSError: x", provider_operation_id="ch_1",
        duplicate_suspected=True, updated_at=at(NOW_US + 9), waits_for=None, output=[1], has_output=True, reconciling=True,
        unreadable="no key", metadata=MappingProxyType({"a": 1}),
    )  # fmt: skip
    for one in fields(Operation):
        assert getattr(told, one.name) == getattr(expected, one.name), one.name
    running = snapshot(a_row(status=Status.DISPATCHED, attempt=1, open_attempts=1))
    assert (running.in_progress, running.outcome, running.waits_for) == (True, Outcome.UNKNOWN, "handler")


def test_a_snapshot_can_be_copied_replaced_and_pickled() -> None:
    assert copy.copy(snapshot(a_row(), created=True)) == the_operation()
    assert replace(snapshot(a_row(), created=True), attempts=7) == the_operation(attempts=7)
    stored = pickle.dumps(replace(snapshot(a_row(), created=True), metadata={}))  # a read-only map cannot be pickled
    assert pickle.loads(stored) == the_operation()
    assert snapshot(a_row(), created=True).to_json() == the_operation().to_json()


def test_a_snapshot_is_frozen_and_has_no_other_field() -> None:
    op = snapshot(a_row())
    with pytest.raises(FrozenInstanceError):
        op.status = Status.CONFIRMED  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del op.status
    with pytest.raises(AttributeError, match=r"^'Operation' object has no attribute 'stat'$"):
        op.stat  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError):
        object.__new__(Operation).status  # noqa: B018 - nothing was read, and nothing is asked for ever


def test_a_field_is_told_once() -> None:
    op = snapshot(a_row(), metadata_text='{"a":[1]}', output_text='{"b":2}')
    assert op.created_at is op.created_at
    assert op.output is op.output
    assert op.evidence is op.evidence


def test_a_text_that_is_no_json_is_an_error_of_the_read() -> None:
    for wrong in ({"output_text": "{"}, {"metadata_text": "{"}):
        with pytest.raises(ValueError, match="Expecting"):
            snapshot(a_row(), **wrong)  # type: ignore[arg-type]
