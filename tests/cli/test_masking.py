"""No sensitive value reaches a person: not in a list, a page, an export, a log or an error; the handler and the probe get it."""

import json
from typing import Any

import pytest

from settled import App, EffectFailedError, EffectRejected, ProbeResult
from settled.store.reads import find_row, read_events
from settled_worker.journal import log_moves
from tests.cli.conftest import Terminal

SECRET = "4242424242424242"
FACTS = ("--actor", "ana", "--reason", "seen", "--evidence-reference", "T-1")


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def sensitive(app: App, told: list[Any]) -> App:
    """Contracts whose handler, probe and evidence all say the value of a sensitive field."""
    terms: dict[str, Any] = {"isolation": "thread", "network_drain": 0, "sensitive_fields": ("card", "customer.email")}

    @app.effect(name="charge", operation_id=lambda a: a["id"], **terms)
    def charge(arguments: dict[str, Any]) -> Any:
        told.append(arguments)
        if arguments["how"] == "return":
            return {"card": SECRET, "echo": f"charged {SECRET}", "amount": 7}
        if arguments["how"] == "refuse":
            raise EffectRejected(f"card {SECRET} was declined")
        raise RuntimeError("x" * 470 + f" {SECRET} is not known")

    @charge.probe
    def was_charged(arguments: dict[str, Any]) -> ProbeResult:
        told.append(arguments)
        return ProbeResult.unknown(evidence={"card": SECRET, "url": f"https://shop/?card={SECRET}", "plain": "kept"})

    return app


def submit(app: App, how: str) -> str:
    arguments = {"id": how, "how": how, "card": SECRET, "customer": {"email": "ana@example.org"}}
    return app.execute("charge", arguments, metadata={"card": SECRET, "run": "7", "mail": "to ana@example.org"}).operation_id


@pytest.mark.promise("S129", part="sensitive fields, in every place that people look at")
def test_a_sensitive_value_is_shown_nowhere(terminal: Terminal, sensitive: App, told: list[Any]) -> None:
    for how in ("return", "refuse", "lose"):
        submit(sensitive, how)
    sensitive.reconcile("lose")
    assert [one["card"] for one in told] == [SECRET] * 4  # the handler and the probe get the thing itself
    assert sensitive.get("return").output["card"] == SECRET and sensitive.get("return").result()["amount"] == 7
    each = [("op", verb, how) for how in ("return", "refuse", "lose") for verb in ("show", "events", "explain")]
    rest = ("op list", "quarantine list", "status", "op wait return", "audit export", "incident export lose")
    every = [*each, *(tuple(words.split()) for words in rest)]
    for words in every:
        for form in ("table", "json"):
            ended = terminal("-o", form, *words)
            for text in (ended.out, ended.err):
                assert SECRET not in text and SECRET[:8] not in text and "ana@example.org" not in text, (words, form)
    shown = terminal.json("op", "show", "return")
    assert (shown["output"], shown["metadata"]["run"]) == ({"card": "***", "echo": "charged ***", "amount": 7}, "7")
    probed = next(one for one in terminal.json("op", "show", "lose")["evidence"] if one["type"] == "probe_unknown")
    assert probed["facts"]["evidence"] == {"card": "***", "url": "https://shop/?card=***", "plain": "kept"}
    for how in ("return", "refuse", "lose"):
        assert SECRET not in repr(sensitive.get(how))
    with pytest.raises(EffectFailedError) as failed:
        sensitive.get("refuse").result()
    assert SECRET not in str(failed.value)
    op = sensitive.get("lose")
    terminal("quarantine", "confirm", "lose", *FACTS, "--expected-version", str(op.version), "--output-json", json.dumps({"card": SECRET}))
    assert SECRET not in terminal("op", "show", "lose").out and sensitive.get("lose").output == {"card": SECRET}


@pytest.mark.promise("S129", part="an error text is masked before it is stored")
def test_an_error_text_is_stored_without_the_sensitive_value(terminal: Terminal, sensitive: App, caplog: pytest.LogCaptureFixture) -> None:
    for how in ("refuse", "lose"):
        submit(sensitive, how)
    sensitive.close()
    with sensitive.ledger.read() as transaction:
        texts = "SELECT coalesce(data, '') FROM event UNION ALL SELECT coalesce(error, '') FROM operation"
        stored = transaction.cursor.execute(texts).fetchall()
        rows = [find_row(transaction, how) for how in ("refuse", "lose")]
        moves = [(row, read_events(transaction, row)) for row in rows if row is not None]
    assert stored and not any(SECRET[:8] in text for (text,) in stored)
    for row, events in moves:
        log_moves(row, events)
    assert "operation.raised" in caplog.text and SECRET[:8] not in caplog.text


@pytest.mark.promise("S129", part="control sequences, direction marks and a megabyte of error text, at the command line")
def test_hostile_text_is_escaped_and_bounded_everywhere(terminal: Terminal, app: App) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\u2066\r\n\x00\x9b31m" + "A" * 1_000_000
    app.execute("pay", {"n": 1, "how": "lose", "says": evil}, metadata={"note": evil[:500]})
    said_by_a_provider = ProbeResult.unknown(evidence={"text": evil[:2000], "\x1bkey": evil[:50]})
    app.add_evidence(operation_id="pay:1", source="web\u202ehook\x1b[31m", result=said_by_a_provider)
    version = str(app.get("pay:1").version)
    said = ("--actor", "an\u202ea\x1b[1m", "--reason", evil[:900], "--evidence-reference", "T\u2066-1", "--expected-version", version)
    assert terminal("quarantine", "propose", "confirm", "pay:1", *said).code == 0
    for words in (
        ("op", "show", "pay:1"), ("op", "events", "pay:1"), ("op", "explain", "pay:1"), ("op", "list"), ("quarantine", "list"),
        ("quarantine", "list", "--pending"), ("status",), ("incident", "export", "pay:1"), ("audit", "export"),
    ):  # fmt: skip
        for form in ("table", "jsonl"):
            ended = terminal("-o", form, *words)
            assert ended.code == 0, ended
            for text in (ended.out, ended.err):
                assert not set(text) & set("\x1b\x07\x00\x9b\r\u202e\u2066"), (words, form)
                assert len(text) < 60_000, (words, form, len(text))
