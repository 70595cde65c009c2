"""`settled quarantine`: a person decides with a name, a reason, evidence, and the version that was seen, or nothing changes."""

import json
import os
import pty
import signal
from pathlib import Path
from typing import Any

import pytest

from settled import App, Status
from settled.core.evidence import ProbeResult
from tests.cli.conftest import Terminal
from tests.cli.terminal import Ended, start

FACTS = ("--actor", "ana", "--reason", "seen in the dashboard", "--evidence-reference", "TICKET-7")


def decide(terminal: Terminal, verb: str, operation_id: str, *more: str, version: int | None = 4) -> Ended:
    seen = () if version is None else ("--expected-version", str(version))
    return terminal("-o", "json", "quarantine", verb, operation_id, *FACTS, *seen, *more)


@pytest.mark.promise("P60")
def test_confirm_shows_the_operation_after_it(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    for bad in ('{"a": 1, "a": 2}', "{", '{"a": NaN}', '"\\ud800"'):
        assert decide(terminal, "confirm", "pay:1", "--output-json", bad).code == 2
    assert app.get("pay:1").version == 4
    ended = decide(terminal, "confirm", "pay:1", "--output-json", '{"paid": 1}', "--provider-operation-id", "ch_1")
    shown = json.loads(ended.out)
    assert ended.code == 0
    assert (shown["status"], shown["operation_id"], shown["provider_operation_id"]) == ("confirmed", "pay:1", "ch_1")
    assert (shown["resolved"], shown["output"]) == (True, {"paid": 1})
    assert app.submit("pay", {"n": 1, "how": "lose"}).result() == {"paid": 1}


@pytest.mark.promise("P61")
def test_reject_prints_first_what_it_asserts(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    terminal.lost(app, "drain", n=2)
    ended = decide(terminal, "reject", "pay:1")
    shown = json.loads(ended.out)
    assert (ended.code, shown["status"], shown["resolved"]) == (0, "rejected", True)
    assert "no attempt of this operation took effect, and that none still can" in ended.err
    refused = decide(terminal, "reject", "drain:2")
    assert (refused.code, refused.out) == (4, "")
    assert "attempt 1" in refused.err and "--assert-nothing-can-arrive" in refused.err
    asserted = decide(terminal, "reject", "drain:2", "--assert-nothing-can-arrive")
    assert asserted.code == 0
    assert app.events("drain:2")[-1].data["assert_nothing_can_arrive"] is True
    assert "no attempt took effect or still can" in " ".join(terminal("quarantine", "reject", "--help").out.split())


@pytest.mark.promise("P62", part="where stdin is no terminal")
def test_a_retry_is_authorized_only_by_the_id_typed_once_more(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    for more in ((), ("--confirm-operation-id", "pay:2"), ("--confirm-operation-id", "")):
        ended = decide(terminal, "authorize-retry", "pay:1", *more)
        assert (ended.code, ended.out) == (2, "")
    assert app.get("pay:1").version == 4
    ended = decide(terminal, "authorize-retry", "pay:1", "--confirm-operation-id", "pay:1")
    shown = json.loads(ended.out)
    assert (ended.code, shown["status"], shown["retry_authorized"]) == (0, "prepared", True)


@pytest.mark.promise("S121", part="--accept-second-effect")
def test_a_retry_against_a_confirmation_needs_a_flag(terminal: Terminal, app: App) -> None:
    app.execute("pay", {"n": 1, "how": "refuse"})
    app.add_evidence(operation_id="pay:1", source="webhook", result=ProbeResult.committed(provider_operation_id="ch_1"))
    assert app.get("pay:1").status is Status.QUARANTINED
    typed, version = ("--confirm-operation-id", "pay:1"), app.get("pay:1").version
    refused = decide(terminal, "authorize-retry", "pay:1", *typed, version=version)
    assert refused.code == 4 and "--accept-second-effect" in refused.err
    assert decide(terminal, "authorize-retry", "pay:1", *typed, "--accept-second-effect", version=version).code == 0
    assert app.events("pay:1")[-1].data["accept_second_effect"] is True


@pytest.mark.promise("S63", part="the command line")
@pytest.mark.parametrize("verb", ["confirm", "reject", "authorize-retry"])
def test_a_missing_version_is_answered_with_the_current_one(terminal: Terminal, app: App, verb: str) -> None:
    terminal.lost(app)
    app.execute("pay", {"n": 2})
    app.submit("pay", {"n": 3})
    for operation_id, version in (("pay:1", 4), ("pay:2", 3), ("pay:3", 1)):
        typed = ("--confirm-operation-id", operation_id) if verb == "authorize-retry" else ()
        ended = decide(terminal, verb, operation_id, *typed, version=None)
        assert (ended.code, ended.out) == (2, "")
        assert f"version {version}" in ended.err and len(ended.err.splitlines()) == 1
    stale = decide(terminal, "confirm", "pay:1", version=3)
    assert stale.code == 4 and "version 4" in stale.err
    assert [app.get(f"pay:{number}").version for number in (1, 2, 3)] == [4, 3, 1]


@pytest.mark.promise("P50", part="the command line")
@pytest.mark.parametrize("verb", ["confirm", "reject", "authorize-retry"])
@pytest.mark.parametrize("missing", ["--actor", "--reason", "--evidence-reference"])
@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_decision_without_one_of_its_facts_is_no_decision(
    terminal: Terminal, app: App, verb: str, missing: str, value: str | None
) -> None:
    terminal.lost(app)
    facts = dict(zip(FACTS[::2], FACTS[1::2], strict=True))
    if value is None:
        del facts[missing]
    else:
        facts[missing] = value
    options = [word for pair in facts.items() for word in pair]
    typed = ("--confirm-operation-id", "pay:1") if verb == "authorize-retry" else ()
    ended = terminal("quarantine", verb, "pay:1", *options, "--expected-version", "4", *typed)
    assert ended.code == 2 and missing in ended.err
    assert app.get("pay:1").version == 4


@pytest.mark.promise("P49", part="the command line")
@pytest.mark.parametrize("verb", ["confirm", "reject", "authorize-retry"])
def test_what_no_person_must_decide_is_refused(terminal: Terminal, app: App, verb: str) -> None:
    app.execute("pay", {"n": 1})
    app.submit("pay", {"n": 2})
    for operation_id, version, code in (("pay:1", 3, 4), ("pay:2", 1, 4), ("absent", 1, 3)):
        typed = ("--confirm-operation-id", operation_id) if verb == "authorize-retry" else ()
        assert decide(terminal, verb, operation_id, *typed, version=version).code == code
    assert [app.get(name).version for name in ("pay:1", "pay:2")] == [3, 1]


@pytest.mark.promise("P50", part="who the system says it is")
def test_the_user_of_the_system_stands_beside_the_actor(terminal: Terminal, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.lost(app)
    monkeypatch.setenv("SUDO_USER", "bea")
    assert decide(terminal, "confirm", "pay:1").code == 0
    data = app.events("pay:1")[-1].data
    assert (data["actor"], data["reason_given"], data["evidence_reference"], data["seen_version"]) == (
        "ana", "seen in the dashboard", "TICKET-7", 4,
    )  # fmt: skip
    assert data["os_user"].startswith("bea")


class AtTerminal:
    """A command whose standard input is a terminal that the test types into."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = start(folder, *arguments, stdin=theirs, stdout=-1, stderr=-1)
        os.close(theirs)

    def end(self, *lines: str, then: bytes = b"") -> Ended:
        """Type lines, then perhaps the end of input (Ctrl-D); return how the command ended."""
        os.write(self.ours, b"".join(line.encode() + b"\n" for line in lines) + then)
        out, err = self.process.communicate(timeout=60)
        os.close(self.ours)
        return Ended(self.process.returncode, out, err)


@pytest.mark.promise("S75", part="at a terminal")
@pytest.mark.promise("P62", part="at a terminal")
@pytest.mark.parametrize(
    ("lines", "then", "code"),
    [
        (("ana", "never arrived", "T-1", "pay:1"), b"", 0),
        (("ana", "never arrived", "T-1", "pay:2"), b"", 2),
        (("ana", "never arrived", "T-1", "yes"), b"", 2),
        (("ana", "never arrived", "T-1"), b"\x04", 2),
        (("ana",), b"\x04", 2),
        ((), b"\x04", 2),
        (("ana", " "), b"", 2),
    ],
)
def test_at_a_terminal_every_question_is_answered_or_nothing_changes(
    terminal: Terminal, app: App, lines: tuple[str, ...], then: bytes, code: int
) -> None:
    terminal.lost(app)
    ended = AtTerminal(terminal.folder, "quarantine", "authorize-retry", "pay:1", "--expected-version", "4").end(*lines, then=then)
    assert ended.code == code, ended
    assert ended.err.index("settled op probe pay:1") < ended.err.index("Who decides?")
    assert "Traceback" not in ended.err
    assert app.get("pay:1").status is (Status.PREPARED if code == 0 else Status.QUARANTINED)


ASKING = (
    ("quarantine", "confirm", "pay:1", "--expected-version", "4"),
    ("quarantine", "authorize-retry", "pay:1", "--expected-version", "4"),
    ("quarantine", "propose", "confirm", "pay:1", "--expected-version", "4"),
    ("quarantine", "confirm-all", "--contract", "pay"),
)


@pytest.mark.parametrize("how", ["interrupt", "end of input"])
@pytest.mark.parametrize("words", ASKING, ids=lambda words: " ".join(words[:2]))
def test_an_interrupt_or_the_end_of_input_at_a_question_changes_nothing(
    terminal: Terminal, app: App, words: tuple[str, ...], how: str
) -> None:
    terminal.lost(app)
    before = len(app.events("pay:1"))
    asked = AtTerminal(terminal.folder, *words)
    assert asked.process.stderr is not None
    said = ""
    while "Who decides?" not in said:
        one = asked.process.stderr.read(1)
        assert one, said
        said += one
    if how == "interrupt":
        asked.process.send_signal(signal.SIGINT)
        ended = asked.end()
        assert (ended.code, ended.out, ended.err.strip()) == (130, "", "")
    else:
        ended = asked.end(then=b"\x04")
        assert (ended.code, ended.out) == (2, "") and "Nothing was changed" in ended.err
    assert (app.get("pay:1").version, len(app.events("pay:1"))) == (4, before)


@pytest.mark.parametrize("stdin", ["null", "closed", "maybe"])
def test_a_question_that_nobody_can_answer_ends_the_command_at_once(terminal: Terminal, app: App, stdin: str) -> None:
    terminal.lost(app)
    more: dict[str, Any] = {"stdin": -3} if stdin == "null" else {"stdin": -1}
    if stdin == "closed":
        more = {"preexec_fn": lambda: os.close(0)}
    started = start(
        terminal.folder, "quarantine", "authorize-retry", "pay:1", *FACTS, "--expected-version", "4", stdout=-1, stderr=-1, **more
    )
    out, err = started.communicate("maybe\n" if stdin == "maybe" else None, timeout=30)
    assert (started.returncode, out) == (2, "")
    assert "--confirm-operation-id" in err
    assert app.get("pay:1").version == 4
