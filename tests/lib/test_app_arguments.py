"""What is refused of a request at the door, and what its callbacks are given."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any

import pydantic
import pytest
from typing_extensions import TypedDict

from settled import OperationConflictError, ProbeResult, Status
from settled.arguments import arguments_schema
from tests.lib.apps.bench import ARGUMENTS, KEY, OPERATION_ID, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from Bench.opened(tmp_path)


class IntCode(IntEnum):
    ONE = 1


class Text(str):
    """A subclass of str."""


@dataclass
class Invoice:
    number: int = 1


@pytest.mark.promise("P08", "D19")
@pytest.mark.parametrize(
    "price",
    [(1, 2), {1}, b"1", Decimal(1), IntCode.ONE, Invoice(), date(2027, 1, 1), uuid.uuid4(), Text("1"), {1: 0}, object(), True.__class__],
    ids=lambda value: type(value).__name__,
)
def test_an_argument_of_a_type_that_is_not_json_is_a_type_error_that_names_its_path(bench: Bench, price: Any) -> None:
    with pytest.raises(TypeError, match=r"items\[2\]\.price"):
        bench.effect(lambda: None).submit(ARGUMENTS | {"items": [1, {}, {"price": price}]})
    assert bench.submitted() == []


@pytest.mark.promise("P08", "D19")
@pytest.mark.parametrize("price", [float("nan"), float("inf"), -float("inf"), "\ud800"])
def test_an_argument_that_json_cannot_hold_is_a_value_error_that_names_its_path(bench: Bench, price: Any) -> None:
    with pytest.raises(ValueError, match=r"items\[2\]\.price"):
        bench.effect(lambda: None).submit(ARGUMENTS | {"items": [1, {}, {"price": price}]})
    assert bench.submitted() == []


@pytest.mark.promise("P08", "D19")
def test_arguments_are_an_exact_dict_without_a_cycle(bench: Bench) -> None:
    effect = bench.effect(lambda: None)
    for top in ([], None, "x", type("Sub", (dict,), {})(ARGUMENTS)):
        with pytest.raises(TypeError):
            effect.submit(top)
    cycle: dict[str, Any] = dict(ARGUMENTS)
    cycle["self"] = cycle
    with pytest.raises(ValueError, match="itself"):
        effect.submit(cycle)
    assert bench.submitted() == []


@pytest.mark.promise("P07", "D20")
def test_the_fingerprint_of_a_request_is_that_of_its_canonical_text(bench: Bench) -> None:
    effect = bench.effect(lambda: None, operation_id=lambda a: "one")
    op = effect.submit({"b": 1, "a": [1.0, True, "1", -0.0, None, "é"]})
    assert op.fingerprint == "json1:de0d5f181327fdf4467dc4d7bdf30f82724ba02ee9ad5537941f97d51bdd897f"
    assert effect.submit({"a": [1.0, True, "1", -0.0, None, "é"], "b": 1}).created is False
    alike = [1, 1.0, True, "1", 0.0, -0.0]
    prints = {effect.submit({"b": value}, operation_id=str(number)).fingerprint for number, value in enumerate(alike)}
    assert len(prints) == 6
    got: list[Any] = []
    big = bench.effect(lambda arguments: got.append(arguments["n"]), name="big")
    bench.app.execute(big, {"n": 2**70}, operation_id="big")
    assert got == [2**70]


@pytest.mark.promise("P08", part="a size limit at the door")
def test_arguments_over_their_limit_are_refused_whole(bench: Bench) -> None:
    with pytest.raises(ValueError, match="1048576"):
        bench.effect(lambda: None).submit(ARGUMENTS | {"text": "é" * 600_000})
    assert bench.submitted() == []


@pytest.mark.promise("P09")
def test_every_callback_gets_a_copy_of_its_own_and_keeps_none_of_the_others_changes(bench: Bench) -> None:
    got: dict[str, Any] = {}

    def spoil(who: str, answer: Any) -> Any:
        def callback(arguments: dict[str, Any]) -> Any:
            got.setdefault(who, dict(arguments))
            arguments["x"] = 1
            arguments["nested"].append(1)
            value = answer() if callable(answer) else answer
            arguments.clear()
            return value

        return callback

    def lost() -> None:
        raise ConnectionResetError

    effect = bench.effect(
        spoil("handler", lost),
        operation_id=spoil("id", OPERATION_ID),
        provider_idempotency_key=spoil("key", KEY),
        provider_reference=spoil("reference", "ref"),
        approval=spoil("approval", False),
    )
    effect.probe(spoil("probe", lambda: ProbeResult.committed(reference="ref", output={"ok": True})))
    holds = spoil("postcondition", True)
    effect.postcondition(lambda arguments, output: holds(arguments))
    mine: dict[str, Any] = ARGUMENTS | {"nested": []}
    effect.submit(mine)
    original = ARGUMENTS | {"nested": []}
    mine["nested"].append("later")
    mine.clear()
    worker = bench.worker()
    worker.turn()
    worker.reconcile()
    assert bench.app.get(OPERATION_ID).status is Status.CONFIRMED
    assert set(got) == {"id", "key", "reference", "approval", "handler", "probe", "postcondition"}
    for who in ("id", "key", "reference", "approval", "handler", "probe", "postcondition"):
        assert {**got[who], "nested": got[who]["nested"][:0]} == original, who
    assert effect.submit(original).created is False


@pytest.mark.promise("S13")
def test_identity_fields_restrict_what_counts_as_the_same_request(bench: Bench) -> None:
    got: list[str] = []
    effect = bench.effect(lambda arguments: got.append(arguments["note"]), identity_fields=("invoice_id", "amount"))
    effect.submit(ARGUMENTS | {"note": "first"})
    assert effect.submit(ARGUMENTS | {"note": "written anew by a model"}).created is False
    with pytest.raises(OperationConflictError) as conflict:
        effect.submit(ARGUMENTS | {"note": "first", "amount": 1})
    assert conflict.value.differs == "request"
    with pytest.raises(ValueError, match="amount"):
        effect.submit({"invoice_id": "INV-1", "note": "x"})
    bench.worker().turn()
    assert got == ["first"]
    assert bench.submitted() == [OPERATION_ID]


@pytest.mark.promise("S13", part="a field that is not declared as free")
def test_an_extra_field_that_nobody_declared_free_makes_another_request(bench: Bench) -> None:
    effect = bench.effect(lambda: None)
    effect.submit(ARGUMENTS)
    with pytest.raises(OperationConflictError):
        effect.submit(ARGUMENTS | {"trace_id": "t-1"})


class Line(TypedDict):
    sku: str
    count: int


class Capture(pydantic.BaseModel):
    invoice_id: str
    amount: int
    lines: list[Line] = []


@pytest.mark.promise("S81")
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"amount": "12"}, "amount"),
        ({"amount": True}, "amount"),
        ({"amount": 12.0}, "amount"),
        ({"extra": 1}, "extra"),
        ({"invoice_id": None}, "invoice_id"),
        ({"lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": "2"}]}, r"lines\[1\]\.count"),
        ({"lines": [{"sku": "a", "count": 1, "extra": 1}]}, r"lines\[0\]\.extra"),
    ],
)
@pytest.mark.parametrize("type_", [Capture, TypedDict("CaptureDict", {"invoice_id": str, "amount": int, "lines": list[Line]}, total=False)])
def test_arguments_are_checked_strictly_against_the_declared_type(bench: Bench, type_: Any, change: dict[str, Any], path: str) -> None:
    effect = bench.effect(lambda: None, arguments_type=type_)
    with pytest.raises(ValueError, match=path):
        effect.submit(ARGUMENTS | change)
    assert bench.submitted() == []


@pytest.mark.promise("S81")
def test_a_missing_field_is_refused_and_the_handler_gets_the_plain_dict(bench: Bench) -> None:
    got: list[Any] = []
    effect = bench.effect(lambda arguments: got.append(arguments), arguments_type=Capture)
    with pytest.raises(ValueError, match="amount"):
        effect.submit({"invoice_id": "INV-1042"})
    bench.app.execute(effect, ARGUMENTS)
    assert got == [ARGUMENTS]
    assert type(got[0]) is dict
    schema = arguments_schema(effect.contract.arguments_type)
    assert sorted(schema["properties"]) == ["amount", "invoice_id", "lines"]
    assert bench.effect(lambda: None, name="untyped").submit({"anything": [None]}, operation_id="u").created


@pytest.mark.promise("D29", part="metadata; evidence maps are shown with evidence")
def test_metadata_is_strict_json_copied_and_read_only(bench: Bench) -> None:
    effect = bench.effect(lambda: None)
    with pytest.raises(TypeError, match="metadata"):
        effect.submit(ARGUMENTS, metadata={"x": object()})
    with pytest.raises(ValueError, match=r"settled\."):
        effect.submit(ARGUMENTS, metadata={"settled.status": "confirmed"})
    assert bench.submitted() == []
    mine: dict[str, Any] = {"run": "r-1", "tags": ["a"], "status": "confirmed"}
    effect.submit(ARGUMENTS, metadata=mine)
    mine["run"] = "changed"
    mine["tags"].append("b")
    op = bench.app.get(OPERATION_ID)
    assert (op.metadata["run"], list(op.metadata["tags"]), op.status) == ("r-1", ["a"], Status.PREPARED)
    with pytest.raises(TypeError):
        op.metadata["run"] = "x"  # type: ignore[index]
    assert effect.submit(ARGUMENTS, metadata={"run": "another"}).metadata["run"] == "r-1"
