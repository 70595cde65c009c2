"""`settled op`: what it shows, what it ends with, and that it needs no user code."""

import json

import pytest

from settled import App
from tests.cli.conftest import Terminal

SUMMARY = {"operation_id", "contract", "status", "outcome", "attempts", "updated_at", "waits_for", "reason"}


@pytest.mark.promise("P58")
def test_lists_show_summaries_and_never_what_was_asked_or_found(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1, "secret": "hunter2"})
    terminal.lost(app, n=2, secret="hunter2")
    app.submit("pay", {"n": 3})
    listed = terminal.json("op", "list")
    assert [set(one) for one in listed] == [SUMMARY] * 3
    assert [one["operation_id"] for one in listed] == ["pay:3", "pay:2", "pay:1"]
    assert [one["operation_id"] for one in terminal.json("op", "list", "--status", "confirmed")] == ["pay:1"]
    assert len(terminal.json("op", "list", "--limit", "2")) == 2
    quarantined = terminal.json("quarantine", "list")
    assert [one["operation_id"] for one in quarantined] == ["pay:2"]
    assert quarantined[0]["reason"] == "no_probe"
    for shown in (terminal("op", "list").out, terminal("quarantine", "list").out, json.dumps(listed)):
        assert "hunter2" not in shown and "paid" not in shown and "json1:" not in shown


@pytest.mark.promise("P59")
def test_events_come_in_order_and_an_unknown_id_is_3(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    events = terminal.json("op", "events", "pay:1")
    assert [one["sequence"] for one in events] == [1, 2, 3, 4]
    assert [one["type"] for one in events] == ["submitted", "dispatched", "raised", "quarantined"]
    ended = terminal("op", "events", "pay:2")
    assert (ended.code, ended.out) == (3, "")


@pytest.mark.promise("S74")
def test_wait_ends_with_the_outcome(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1})
    app.execute("pay", {"n": 2, "how": "refuse"})
    app.submit("pay", {"n": 3})
    app.submit("pay", {"n": 4})
    assert terminal("op", "wait", "pay:1").code == 0
    assert terminal("op", "wait", "pay:2").code == 1
    assert terminal("op", "wait", "pay:3", "--timeout", "0.01").code == 1
    cancelled = terminal("-o", "json", "op", "cancel", "pay:4", "--actor", "ana", "--reason", "typo")
    assert json.loads(cancelled.out)["status"] == "cancelled"
    assert terminal("op", "wait", "pay:4").code == 1
    assert terminal("op", "show", "pay:1").code == 0
    for verb in ("show", "wait", "events", "explain"):
        assert terminal("op", verb, "absent").code == 3
    for verb in ("cancel", "stop"):
        assert terminal("op", verb, "pay:3").code == 2
        assert terminal("op", verb, "pay:3", "--actor", "ana").code == 2
        assert terminal("op", verb, "pay:3", "--actor", "ana", "--reason", "  ").code == 2
        assert terminal("op", verb, "absent", "--actor", "ana", "--reason", "r").code == 3
    assert terminal("op", "stop", "pay:3", "--actor", "ana", "--reason", "r").code == 4
    assert app.get("pay:3").version == 1


@pytest.mark.promise("P24", part="the keys of -o json")
def test_show_prints_what_is_known_under_its_names(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1})
    shown = terminal.json("op", "show", "pay:1")
    names = """operation_id status outcome in_progress created attempts evidence version reason next_action output error
        provider_operation_id provider_reference duplicate_suspected contract contract_version fingerprint created_at updated_at"""
    assert set(names.split()) <= set(shown)
    assert (shown["status"], shown["outcome"], shown["attempts"], shown["output"]) == ("confirmed", "CONFIRMED", 1, {"paid": 1})


@pytest.mark.promise("S120", part="the commands")
def test_an_approval_is_given_or_denied_by_name(terminal: Terminal, app: App) -> None:
    for number in (1, 2):
        app.submit("gift", {"n": number})
    assert terminal("op", "approve", "gift:1").code == 2
    approved = json.loads(terminal("-o", "json", "op", "approve", "gift:1", "--actor", "ana", "--reason", "fine").out)
    assert (approved["status"], approved["reason"]) == ("prepared", None)
    denied = json.loads(terminal("-o", "json", "op", "deny", "gift:2", "--actor", "ana", "--reason", "no").out)
    assert (denied["status"], denied["outcome"]) == ("cancelled", "FAILED")
    assert terminal("op", "approve", "gift:2", "--actor", "ana", "--reason", "late").code == 4


@pytest.mark.promise("S75", part="op probe prints answer and resulting status")
def test_probe_prints_the_answer_and_what_came_of_it(terminal: Terminal, app: App) -> None:
    app.execute("send", {"n": 1, "how": "found"})
    app.execute("send", {"n": 2})
    app.close()
    found = terminal.json("op", "probe", "send:1", "--app", terminal.reference)
    assert (found["status"], [one["type"] for one in found["answers"]]) == ("confirmed", ["probe_committed"])
    nothing = terminal.json("op", "probe", "send:2", "--app", terminal.reference)
    assert (nothing["status"], [one["type"] for one in nothing["answers"]]) == ("outcome_unknown", ["probe_unknown"])
    assert not [path for path in (terminal.folder / "settled.db.run").iterdir() if path.suffix == ".lock"]


@pytest.mark.promise("S122", part="everything but worker run, submit, op probe, sweep run")
def test_operators_never_import_the_agents_code(terminal: Terminal, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.lost(app)
    monkeypatch.setenv("SETTLED_APP", "cannot.be:imported")
    for arguments in (
        ("op", "list"), ("op", "show", "pay:1"), ("op", "explain", "pay:1"), ("op", "events", "pay:1"), ("quarantine", "list"),
        ("status",), ("audit", "verify"), ("audit", "head"), ("sweep", "list"), ("sweep", "run", "escalate"), ("db", "check"),
    ):  # fmt: skip
        assert terminal(*arguments).code == 0, arguments
    for arguments in (("op", "probe", "pay:1"), ("sweep", "run", "leases"), ("sweep", "run", "reconcile"), ("worker", "run", "--once")):
        ended = terminal(*arguments)
        assert ended.code == 78 and "cannot.be" in ended.err and "ModuleNotFoundError" in ended.err, arguments


@pytest.mark.promise("S11", part="why, which attempts, which fence, from when a person may decide")
def test_explain_says_why_and_what_would_move_it_and_writes_nothing(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    terminal.lost(app, "drain", n=2)
    app.submit("pay", {"n": 3})
    before = (terminal("audit", "head").out, terminal("op", "events", "pay:1").out)
    said = terminal("op", "explain", "pay:1").out
    assert "quarantined" in said and "no_probe" in said and "Attempt 1" in said and "fenced (raised)" in said
    assert "reject it or authorize a retry now (version 4)" in said
    waiting = terminal("op", "explain", "drain:2").out
    assert "authorize a retry from 20" in waiting
    assert "no_handler" in terminal("op", "explain", "pay:3").out
    assert before == (terminal("audit", "head").out, terminal("op", "events", "pay:1").out)


@pytest.mark.promise("S133", part="op explain says why a finite window does not help a thread")
def test_explain_says_why_a_finite_window_justifies_no_retry_from_a_thread(terminal: Terminal) -> None:
    app = App(terminal.folder / "settled.db")
    app.create_database()
    with pytest.warns(UserWarning, match="process"):

        @app.effect(
            name="wire", operation_id=lambda a: f"wire:{a['n']}", isolation="thread",
            provider_idempotency_key=lambda a: f"wire:{a['n']}", provider_idempotency_guaranteed=True,
            provider_idempotency_window=86_400,
        )  # fmt: skip
        def wire() -> None:
            raise ConnectionResetError("answer lost")

    assert app.execute("wire", {"n": 1}).reason == "no_probe"
    app.close()
    said = terminal("op", "explain", "wire:1").out
    assert "its window is finite, and in thread isolation" in said and "isolation='process'" in said


@pytest.mark.promise("D15", part="op show -o json has the record of each attempt, and how each kind of end closed it")
def test_programs_get_one_record_for_each_attempt(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1})
    app.execute("pay", {"n": 2, "how": "refuse"})
    terminal.lost(app, n=3)
    found = {}
    for number in (1, 2, 3):
        (found[number],) = terminal.json("op", "show", f"pay:{number}")["attempt_records"]
    names = {
        "number", "dispatched_at", "ended_at", "fenced_at", "terms", "worker", "end", "execution", "verification", "outcome", "error",
        "error_class", "retryable", "fence", "closed_by", "interruption", "decision", "basis",
    }  # fmt: skip
    assert all(record.keys() == names for record in found.values()), found
    said = {number: (one["end"], one["outcome"], one["closed_by"], one["interruption"], one["fence"]) for number, one in found.items()}
    assert said == {
        1: ("returned", "CONFIRMED", "open", None, "returned"),
        2: ("rejected", "FAILED", "rejected", None, "raised"),
        3: ("raised", "UNKNOWN", "open", "exception", "raised"),
    }
    asserted = ("--actor", "ana", "--reason", "no", "--evidence-reference", "T", "--expected-version", str(app.get("pay:3").version))
    assert terminal("quarantine", "reject", "pay:3", *asserted, "--assert-nothing-can-arrive").code == 0
    (record,) = terminal.json("op", "show", "pay:3")["attempt_records"]
    assert (record["closed_by"], record["number"]) == ("operator_asserted", 1)
