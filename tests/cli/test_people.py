"""What people decide and see, each promise from its first word to its last, at the command line and in the library."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from settled import App, ConfigurationError, Outcome, ProbeResult, SettledError, Status, TransitionRefusedError
from settled.core import errors
from settled.presence import Presence
from settled_cli.verdict import say_end
from tests.cli.conftest import Terminal
from tests.cli.terminal import ROOT
from tests.cli.test_quarantine import FACTS, AtTerminal
from tests.lib.apps.bench import HandWorker

BOB = ("--actor", "bob", "--reason", "I see the same")
SAID: dict[str, Any] = {"actor": "ana", "reason": "seen in the dashboard", "evidence_reference": "TICKET-7"}


def run(terminal: Terminal, *words: str) -> tuple[int, Any]:
    ended = terminal("-o", "json", *words)
    return ended.code, json.loads(ended.out) if ended.out else ended.err


def seen(app: App, operation_id: str) -> tuple[str, str]:
    return "--expected-version", str(app.get(operation_id).version)


@pytest.mark.promise("P50")
@pytest.mark.parametrize("verb", ["confirm", "reject", "authorize_retry"])
def test_each_decision_needs_its_three_facts_and_keeps_them_with_the_account_and_the_version(
    terminal: Terminal, app: App, verb: str
) -> None:
    terminal.lost(app)
    command = verb.replace("_", "-")
    typed = ("--confirm-operation-id", "pay:1") if verb == "authorize_retry" else ()
    for missing in SAID:
        for value in (None, "", " "):
            facts = {**SAID, missing: value}
            with pytest.raises(ValueError, match="blank"):
                getattr(app, verb)("pay:1", **facts, expected_version=4)
            words = [word for name, one in facts.items() if one is not None for word in (f"--{name.replace('_', '-')}", one)]
            code, err = run(terminal, "quarantine", command, "pay:1", *words, "--expected-version", "4", *typed)
            assert code == 2 and missing.replace("_", "-") in err
    assert app.get("pay:1").version == 4
    assert run(terminal, "quarantine", command, "pay:1", *FACTS, "--expected-version", "4", *typed)[0] == 0
    data = app.events("pay:1")[-1].data
    assert [data[name] for name in ("actor", "reason_given", "evidence_reference", "seen_version")] == [*SAID.values(), 4]
    assert data["os_user"] and data["principal"].startswith("os:")


@pytest.mark.promise("S119")
def test_the_two_person_rule_from_its_default_to_its_end(terminal: Terminal, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.effect(name="wire", operation_id=lambda a: f"wire:{a['n']}", isolation="thread", network_drain=0, risk="financial")
    def wire(arguments: dict[str, Any]) -> None:
        raise RuntimeError("lost")

    ids = [terminal.lost(app, "wire", n=number) for number in range(1, 5)]
    assert run(terminal, "quarantine", "confirm", ids[0], *FACTS, *seen(app, ids[0]))[0] == 0  # off by default
    (terminal.folder / "settled.toml").write_text('two_person_risks = ["financial"]\n')
    direct = terminal("quarantine", "confirm", ids[1], *FACTS, *seen(app, ids[1]))
    assert direct.code == 4 and "settled quarantine propose" in direct.err

    def proposed(operation_id: str) -> str:
        code, said = run(terminal, "quarantine", "propose", "confirm", operation_id, *FACTS, *seen(app, operation_id))
        assert code == 0
        return str(said["proposal"])

    one, two, three = (proposed(operation_id) for operation_id in ids[1:])
    assert run(terminal, "quarantine", "approve", ids[1], *BOB, "--proposal", one)[0] == 4  # the same account
    monkeypatch.setenv("SUDO_USER", "bob")
    assert run(terminal, "quarantine", "approve", ids[1], "--actor", "ana", "--reason", "x", "--proposal", one)[0] == 4  # the same name
    code, done = run(terminal, "quarantine", "approve", ids[1], *BOB, "--proposal", one)
    assert (code, done["status"], done["resolved"]) == (0, "confirmed", True)
    before = app.get(ids[2])
    assert run(terminal, "quarantine", "decline", ids[2], *BOB, "--proposal", two)[0] == 0
    assert app.get(ids[2]).version == before.version and app.get(ids[2]).status is Status.QUARANTINED
    app.add_evidence(operation_id=ids[3], source="webhook", result=ProbeResult.committed(provider_operation_id="w_1"))
    assert app.get(ids[3]).status is Status.CONFIRMED
    assert run(terminal, "quarantine", "approve", ids[3], *BOB, "--proposal", three)[0] == 4  # it moved since
    assert "recommended for `financial`" in (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")


@pytest.mark.promise("S120")
def test_what_needs_an_approval_waits_for_a_person_and_for_nobody_else(terminal: Terminal, app: App) -> None:
    calls: list[int] = []

    @app.effect(
        name="refund", operation_id=lambda a: f"refund:{a['n']}", isolation="thread", network_drain=0,
        approval=lambda a: a["amount"] > 100,
    )  # fmt: skip
    def refund(arguments: dict[str, Any]) -> None:
        calls.append(arguments["n"])

    def ask(number: int, amount: int = 500, **more: Any) -> str:
        claims = {"n": number, "amount": amount, "approved": True, "note": f"settled op approve refund:{number} --actor ana"}
        return app.submit("refund", claims, metadata={"approval": "granted by ana"}, **more).operation_id

    worker = HandWorker(app, contracts=["refund", "gift"])
    try:
        assert app.submit("gift", {"n": 1}).reason == "awaiting_approval"  # approval="required"
        for number in (1, 2):
            ask(number)
        ask(3, deadline=_at(app, 0.001))
        ask(4, amount=100)
        assert (worker.turn(), calls) == (1, [4])
        assert [app.get(f"refund:{number}").reason for number in (1, 2)] == ["awaiting_approval"] * 2
        worker.sweeper.escalate()
        assert (app.get("refund:3").status, app.events("refund:3")[-1].type) == (Status.CANCELLED, "expired")
        for words in (("--reason", "x"), ("--actor", "ana"), ("--actor", " ", "--reason", "x")):
            assert terminal("op", "approve", "refund:1", *words).code == 2
        assert terminal("op", "approve", "refund:1", *FACTS[:4], "--expected-fingerprint", "json1:00").code == 4
        fingerprint = app.get("refund:1").fingerprint
        assert terminal("op", "approve", "refund:1", *FACTS[:4], "--expected-fingerprint", fingerprint).code == 0
        assert terminal("op", "deny", "refund:2", *FACTS[:4]).code == 0
        assert (worker.turn(), calls) == (1, [4, 1])
        denied = app.get("refund:2")
        assert (denied.status, denied.outcome) == (Status.CANCELLED, Outcome.FAILED)
        assert app.get("gift:1").attempts == 0
    finally:
        worker.close()


@pytest.mark.promise("S46")
def test_a_providers_notice_is_judged_like_a_probes_answer(terminal: Terminal, app: App) -> None:
    terms: dict[str, Any] = {"isolation": "thread", "network_drain": 0, "provider_reference": lambda a: f"m:{a['n']}"}

    @app.effect(name="mail", operation_id=lambda a: f"mail:{a['n']}", **terms)
    def mail(arguments: dict[str, Any]) -> None:
        raise RuntimeError("lost")

    @mail.postcondition
    def is_sent(arguments: dict[str, Any], output: Any) -> bool:
        return bool(output == "sent")

    for number in (1, 2, 3):
        app.execute("mail", {"n": number})
    good = ProbeResult.committed(reference="m:1", output="sent")
    for source in ("webhook", "webhook"):
        op = app.add_evidence(operation_id="mail:1", source=source, result=good)
        assert op is not None and op.status is Status.CONFIRMED
    assert [one.status for one in app.events("mail:1")].count(Status.CONFIRMED) == 2  # kept twice,
    assert app.events("mail:1")[-2].type == app.events("mail:1")[-1].type == "probe_committed"  # moved once
    unbound = app.add_evidence(operation_id="mail:2", source="webhook", result=ProbeResult.committed(reference="m:9", output="sent"))
    assert unbound is not None and unbound.status is not Status.CONFIRMED
    unmet = app.add_evidence(provider_reference="m:3", source="webhook", result=ProbeResult.committed(reference="m:3", output="bounced"))
    assert unmet is not None and unmet.status is not Status.CONFIRMED
    assert unmet.evidence[-1]["source"] == "webhook"
    for both in ({}, {"operation_id": "mail:1", "provider_reference": "m:1"}):
        with pytest.raises(TypeError):
            app.add_evidence(source="webhook", result=good, **both)  # type: ignore[arg-type]
    with pytest.raises(errors.OperationNotFoundError):
        app.add_evidence(operation_id="absent", source="webhook", result=good)
    add = ("evidence", "add", "--source", "webhook", "--status", "committed")
    assert run(terminal, *add, "--operation-id", "absent")[0] == 3
    app.execute("send", {"n": 7})
    assert run(terminal, *add, "--provider-reference", "ref:7")[1]["status"] == "confirmed"
    assert run(terminal, *add, "--provider-reference", "unknown")[1] == {"kept_for": "unknown", "operation_id": None}


@pytest.mark.promise("P62", "S75")
def test_a_retry_wants_its_id_typed_once_more_and_offers_to_look_first(terminal: Terminal, app: App) -> None:
    for number in (1, 2):
        terminal.lost(app, n=number)
    words = ("quarantine", "authorize-retry", "pay:1", *FACTS, "--expected-version", "4")
    for more in ((), ("--confirm-operation-id", "pay:2")):
        assert run(terminal, *words, *more)[0] == 2
        assert app.get("pay:1").version == 4
    code, done = run(terminal, *words, "--confirm-operation-id", "pay:1")
    assert (code, done["status"], done["retry_authorized"]) == (0, "prepared", True)
    asked = ("quarantine", "authorize-retry", "pay:2", "--expected-version", "4")
    nobody = AtTerminal(terminal.folder, *asked).end(then=b"\x04")
    assert nobody.code == 2 and nobody.err.index("settled op probe pay:2") < nobody.err.index("Who decides?")
    assert app.get("pay:2").version == 4
    somebody = AtTerminal(terminal.folder, *asked).end("ana", "never arrived", "T-1", "pay:2")
    assert somebody.code == 0 and "type the ID pay:2" in somebody.err and app.get("pay:2").status is Status.PREPARED
    app.execute("send", {"n": 3})
    probed = run(terminal, "op", "probe", "send:3", "--app", terminal.reference)[1]
    assert (probed["answers"][0]["type"], probed["status"]) == ("probe_unknown", "outcome_unknown")


@pytest.mark.promise("S69", part="every error class has one of the codes, and the command line ends with it")
def test_every_error_has_an_exit_code_of_the_list() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, SettledError)]
    assert {one.exit_code for one in classes} <= {1, 3, 4, 75, 78} and len(classes) > 10
    assert say_end(TransitionRefusedError("op", "confirmed", "confirm", "it is settled")) == 4
    assert say_end(ConfigurationError("no")) == 78


@pytest.mark.promise("S70", part="one screen, whatever there is")
def test_status_fits_on_one_screen_and_says_what_nobody_was_told(terminal: Terminal, app: App) -> None:
    for name in "abcdefgh":

        @app.effect(name=f"contract_{name}", operation_id=lambda a, name=name: f"{name}:{a['n']}", isolation="thread", network_drain=0)
        def handler(arguments: dict[str, Any]) -> None:
            raise RuntimeError("lost")

        terminal.lost(app, f"contract_{name}")
    worker = Presence(app.shell, kind="worker", contracts=("contract_a",), slots=1)
    try:
        app.propose("a:1", "confirm", **SAID, expected_version=4)
        text = terminal("status").out
        assert len(text.splitlines()) <= 25 and max(map(len, text.splitlines()[1:])) <= 80, text
        assert "8 open, 8 notifications UNDELIVERED" in text and "1 wait for a second person" in text and "and 5 more contracts" in text
        status = terminal.json("status")
        assert (status["incidents_open"], status["proposals_pending"], len(status["quarantined"])) == (8, 1, 8)
        assert status["escalations_undelivered"][0]["undelivered"] == 8
        assert {"uptime", "last_tick", "since", "pid"} <= status["workers"][0].keys()
    finally:
        worker.close()


def _at(app: App, seconds: float) -> Any:
    return datetime.fromtimestamp(app.shell.clock.now().wall_us / 1e6 + seconds, UTC)
