"""What is given from outside is bounded by a named limit: over it a request is refused whole, and a text is cut."""

from pathlib import Path
from typing import Any

import pytest

from settled import App, Status
from settled.core.limits import DEFAULTS, Limits

SMALL = Limits(arguments_bytes_max=200, metadata_bytes_max=50, result_bytes_max=100, error_text_max=40)


@pytest.fixture
def app(tmp_path: Path) -> Any:
    app = App(tmp_path / "settled.db", limits=SMALL)

    @app.effect(name="pay", operation_id=lambda a: f"pay:{a['n']}", isolation="thread", network_drain=0)
    def pay(arguments: dict[str, Any]) -> Any:
        if "fails" in arguments:
            raise RuntimeError("x" * 10_000)
        return "y" * int(arguments.get("output", 1))

    app.create_database()
    yield app
    app.close()


OVER: list[dict[str, Any]] = [
    {"arguments": {"n": 1, "pad": "x" * 200}},
    {"metadata": {"pad": "x" * 50}},
    {"operation_id": "x" * (DEFAULTS.operation_id_max + 1)},
    {"priority": DEFAULTS.priority_max + 1},
    {"delay": 1e10},
]


@pytest.mark.promise("S60", part="requests over a limit are refused, and nothing is stored")
@pytest.mark.parametrize("over", OVER, ids=[next(iter(one)) for one in OVER])
def test_a_request_over_a_limit_is_refused_whole(app: App, over: dict[str, Any]) -> None:
    options = {"arguments": {"n": 1}, **over}
    with pytest.raises(ValueError):
        app.submit("pay", options.pop("arguments"), **options)
    assert app.list() == []


@pytest.mark.promise("S60", part="results, error texts, notes and lists")
def test_what_comes_back_and_what_people_say_is_bounded(app: App) -> None:
    big = app.execute("pay", {"n": 1, "output": 500})
    assert (big.status, big.has_output) == (Status.QUARANTINED, False)  # it happened, and what it gave is not storable
    failed = app.execute("pay", {"n": 2, "fails": True})
    assert failed.error is not None and len(failed.error) <= SMALL.error_text_max + len("RuntimeError: ")
    with pytest.raises(ValueError):
        app.pause("pay", actor="ana", reason="x" * (DEFAULTS.note_text_max + 1))
    for limit in (0, DEFAULTS.list_max + 1):
        with pytest.raises(ValueError):
            app.list(limit=limit)
        with pytest.raises(ValueError):
            app.pauses(lifted=True, limit=limit)
