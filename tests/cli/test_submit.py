"""`settled submit` and `settled evidence add`: what comes in from the command line, and what is refused at the door."""

import json
from collections.abc import Callable

import pytest

from settled import App, Status
from tests.cli.conftest import Terminal
from tests.cli.terminal import start


@pytest.mark.promise("S73", part="with an app")
def test_submit_prints_id_status_and_whether_it_was_created(terminal: Terminal, app: App) -> None:
    def submit(arguments: str, *more: str, stdin: str = "") -> tuple[str, str, bool]:
        ended = terminal("-o", "json", "submit", "pay", "--app", terminal.reference, "--args", arguments, *more, stdin=stdin)
        assert ended.code == 0, ended
        answer = json.loads(ended.out)
        return answer["operation_id"], answer["status"], answer["created"]

    assert submit('{"n": 1}') == ("pay:1", "prepared", True)
    assert submit('{"n": 1}') == ("pay:1", "prepared", False)
    (terminal.folder / "arguments.json").write_text('{"n": 2}')
    assert submit("@arguments.json") == ("pay:2", "prepared", True)
    assert submit("-", stdin='{"n": 3}') == ("pay:3", "prepared", True)
    assert submit('{"n": 4}', "--operation-id", "mine", "--priority", "3", "--delay", "60") == ("mine", "prepared", True)
    assert app.get("mine").priority == 3
    text = terminal("submit", "pay", "--app", terminal.reference, "--args", '{"n": 5}').out
    assert text.split() == ["operation", "id", "pay:5", "status", "prepared", "created", "yes"]


@pytest.mark.promise("S73", part="refusals")
@pytest.mark.parametrize(
    ("contract", "arguments", "code"),
    [
        ("pay", '{"n": 1, "n": 2}', 2),
        ("pay", '{"n": NaN}', 2),
        ("pay", '{"n": Infinity}', 2),
        ("pay", '{"n": "\\ud800"}', 2),
        ("pay", "{", 2),
        ("pay", "[1]", 2),
        ("pay", "{}", 2),
        ("pay", "@absent.json", 2),
        ("pay", '{"n": 7, "how": "other"}', 4),
        ("pey", '{"n": 1}', 3),
    ],
)
def test_a_bad_request_stores_nothing(terminal: Terminal, app: App, contract: str, arguments: str, code: int) -> None:
    app.submit("pay", {"n": 7})
    ended = terminal("submit", contract, "--app", terminal.reference, "--args", arguments)
    assert (ended.code, ended.out) == (code, "")
    assert len(app.list()) == 1


@pytest.mark.promise("S73", part="without an app")
def test_without_an_app_the_name_must_be_one_that_a_live_worker_lists(
    terminal: Terminal, app: App, eventually: Callable[..., object]
) -> None:
    arguments = ("submit", "pay", "--args", '{"n": 9}', "--operation-id", "mine")
    assert terminal(*arguments).code == 3
    with start(terminal.folder, "worker", "run", "--app", terminal.reference, stdout=-3, stderr=-3) as worker:
        eventually(lambda: terminal.json("status")["workers"], seconds=30)
        assert terminal("submit", "pey", "--args", "{}", "--operation-id", "x").code == 3
        assert terminal("submit", "pay", "--args", '{"n": 9}').code == 78
        ended = terminal("-o", "json", *arguments, "--wait", "20")
        assert terminal("db", "journal", "delete").code == 4
        assert terminal("db", "upgrade").code == 4
        assert terminal.json("health")["problems"] == []
        sweeps = {one["sweep"]: one for one in terminal.json("status")["sweeps"]}
        assert sweeps["leases"]["next"] >= sweeps["leases"]["last"]
        worker.terminate()
        assert worker.wait(30) == 0
    assert (ended.code, json.loads(ended.out)["status"]) == (0, "confirmed")
    assert terminal(*arguments).code == 3
    assert app.get("mine").output == {"paid": 9}


@pytest.mark.promise("S73", part="--wait")
def test_submit_with_wait_ends_like_op_wait(terminal: Terminal, app: App) -> None:
    ended = terminal("submit", "pay", "--app", terminal.reference, "--args", '{"n": 1}', "--wait", "0.05")
    assert ended.code == 1
    assert "do not repeat it" in ended.err


def test_evidence_is_added_by_operation_or_by_reference(terminal: Terminal, app: App) -> None:
    app.execute("send", {"n": 1})
    add = ("evidence", "add", "--source", "webhook:shop")
    assert terminal(*add, "--operation-id", "absent", "--status", "pending").code == 3
    assert terminal(*add, "--operation-id", "send:1", "--status", "pending", "--output-json", "1").code == 2
    assert terminal(*add, "--operation-id", "send:1", "--status", "committed", "--terminal").code == 2
    assert terminal(*add, "--operation-id", "send:1", "--status", "pending", "--facts", "[]").code == 2
    assert app.get("send:1").status is Status.OUTCOME_UNKNOWN
    waiting = terminal.json(*add, "--provider-reference", "ref:2", "--status", "pending")
    assert waiting == {"kept_for": "ref:2", "operation_id": None}
    more = ("--provider-operation-id", "m-1", "--output-json", '{"sent": true}', "--facts", '{"event": "e-1"}')
    confirmed = terminal.json(*add, "--provider-reference", "ref:1", "--status", "committed", *more)
    assert (confirmed["status"], confirmed["output"], confirmed["provider_operation_id"]) == ("confirmed", {"sent": True}, "m-1")
