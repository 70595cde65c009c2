"""Plain tools: a limit, a few tries, a breaker; none of it for an effect."""

import threading
from typing import Any

import pytest
from typing_extensions import TypedDict

from settled import ConfigurationError
from settled.integrations import plain_tool
from settled.integrations.plain import Breaker


class Lookup(TypedDict):
    order: str


def quick(function: Any, **options: Any) -> Any:
    from dataclasses import replace

    return replace(plain_tool(function, arguments_type=Lookup, name="lookup", **options), pause_us=1)


@pytest.mark.promise("P78", part="plain actions are tried three times on a timeout")
def test_a_plain_call_that_is_too_late_is_tried_three_times_at_most() -> None:
    calls, gate = list[int](), threading.Event()

    def slow(arguments: Any) -> Any:
        calls.append(1)
        gate.wait()

    result = quick(slow, timeout=0.05).call({"order": "1"})
    gate.set()
    assert (result.status, result.tries, len(calls)) == ("timeout", 3, 3)


def test_a_timeout_of_the_function_itself_is_tried_again_and_its_success_counts() -> None:
    calls = list[int]()

    def shaky(arguments: Any) -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise TimeoutError("too late")
        return {"order": arguments["order"]}

    result = quick(shaky, timeout=20).call({"order": "1"})
    assert (result.status, result.value, result.tries) == ("ok", {"order": "1"}, 3)


def test_any_other_error_is_told_and_not_tried_again() -> None:
    calls = list[int]()

    def broken(arguments: Any) -> Any:
        calls.append(1)
        raise KeyError("order\x1b[2J")

    result = quick(broken).call({"order": "1"})
    assert (result.status, result.tries, len(calls)) == ("error", 1, 1)
    assert "\x1b" not in result.for_model()["error"]


@pytest.mark.promise("P78", part="the breaker opens after three failures, refuses one call and lets one through")
def test_the_breaker_opens_after_three_failures_refuses_one_call_and_lets_one_through() -> None:
    calls, works = list[int](), threading.Event()

    def broken(arguments: Any) -> Any:
        calls.append(1)
        if not works.is_set():
            raise OSError("down")
        return "up"

    tool = quick(broken)
    assert [tool.call({"order": "1"}).status for _ in range(7)] == [
        "error", "error", "error", "breaker_open", "error", "breaker_open", "error",
    ]  # fmt: skip
    assert len(calls) == 5
    works.set()
    assert [tool.call({"order": "1"}).status for _ in range(4)] == ["breaker_open", "ok", "ok", "ok"]


@pytest.mark.promise("P78", part="invalid input opens no breaker")
def test_invalid_input_opens_no_breaker() -> None:
    tool = quick(lambda arguments: "found")
    for wrong in ({}, {"order": 1}, {"order": "1", "extra": True}, None, {"order": float("nan")}) * 2:
        assert tool.call(wrong).status == "invalid_arguments"
    assert tool.breaker.failures == 0 and not tool.breaker.is_open
    assert tool.call({"order": "1"}).status == "ok"


def test_a_success_closes_the_count() -> None:
    breaker = Breaker()
    for _ in range(5):
        for succeeded in (False, False, True):
            assert breaker.admits()
            breaker.note(succeeded=succeeded)
    assert not breaker.is_open


def test_a_result_that_is_no_plain_data_is_an_error() -> None:
    assert quick(lambda arguments: object()).call({"order": "1"}).status == "error"
    assert quick(lambda arguments: (1, 2)).call({"order": "1"}).status == "error"


def test_a_plain_tool_declares_itself_as_strictly_as_an_effect() -> None:
    tool = plain_tool(lambda arguments: None, arguments_type=Lookup, name="lookup", description="Read an order.")
    assert (tool.name, tool.description, tool.schema["additionalProperties"]) == ("lookup", "Read an order.", False)

    async def later(arguments: Any) -> Any: ...

    with pytest.raises(ConfigurationError, match="coroutine"):
        plain_tool(later, arguments_type=Lookup)
    with pytest.raises(ValueError, match="tries_max"):
        plain_tool(lambda arguments: None, arguments_type=Lookup, tries_max=0)
