"""`settled incident export` and `settled evidence add`: what is taken along, and what a provider told us."""

import json
import resource
import stat

import pytest

from settled import App, ProbeResult, Status
from tests.cli.conftest import Terminal
from tests.cli.test_quarantine import FACTS

ARGUMENT = "a-private-street-7"


@pytest.mark.promise("S124")
def test_an_export_holds_everything_but_arguments_and_outputs(terminal: Terminal, app: App) -> None:
    (terminal.folder / "settled.toml").write_text('redactions = ["tok_[a-z0-9]+"]\n')
    app.execute("pay", {"n": 1, "how": "lose", "says": "no answer for tok_a1b2c3", "street": ARGUMENT}, metadata={"run": "7"})
    app.add_evidence(operation_id="pay:1", source="webhook", result=ProbeResult.unknown(evidence={"key": "tok_zz99", "seen": "nothing"}))
    app.propose("pay:1", "confirm", actor="ana", reason="seen", evidence_reference="T-1", expected_version=4)
    found = json.loads(terminal("incident", "export", "pay:1").out)
    assert found["operation"]["operation_id"] == "pay:1" and found["operation"]["metadata"] == {"run": "7"}
    assert [one["type"] for one in found["events"]][-2:] == ["probe_unknown", "proposed"]
    assert [one["type"] for one in found["decisions"]] == ["proposed"]
    assert (found["attempts"][0]["fence"], found["evidence"][0]["type"]) == ("raised", "raised")
    assert found["incidents"][0]["kind"] == "quarantined"
    assert found["notifications"][0]["state"] == "wanted" and found["terms"] and found["workers"][0]["kind"] == "caller"
    assert found["ledger"]["audit_head"].split(":")[0].isdigit() and found["next"].startswith("settled ")
    text = json.dumps(found)
    assert ARGUMENT not in text and "tok_" not in text and '"output"' not in text
    assert terminal("incident", "export", "absent").code == 3


def test_an_export_into_a_file_is_private_and_replaces_none(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    file = terminal.folder / "incident.json"
    first = terminal("incident", "export", "pay:1", "--output", str(file))
    assert (first.code, first.out) == (0, "") and stat.S_IMODE(file.stat().st_mode) == 0o600
    written = file.read_text()
    assert json.loads(written)["operation"]["status"] == "quarantined"
    again = terminal("incident", "export", "pay:1", "--output", str(file))
    assert again.code == 4 and file.read_text() == written
    nowhere = terminal("incident", "export", "pay:1", "--output", str(terminal.folder / "no" / "file"))
    assert (nowhere.code, nowhere.out) == (2, "") and "--output" in nowhere.err and "Nothing was written" in nowhere.err
    assert not (terminal.folder / "no").exists()


def test_an_export_that_the_disk_does_not_take_leaves_no_part_of_itself(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    assert len(terminal("incident", "export", "pay:1").out) > 1000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        ended = terminal("incident", "export", "pay:1", "--output", "incident.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (ended.code, ended.out) == (2, "") and "incident.json cannot be written (File too large). Nothing was written" in ended.err
    assert not (terminal.folder / "incident.json").exists()


def add(terminal: Terminal, *words: str) -> int:
    return terminal("-o", "json", "evidence", "add", "--source", "webhook:shop", *words).code


@pytest.mark.promise("S46", part="the command")
def test_a_notice_settles_by_id_or_reference_and_twice_moves_once(terminal: Terminal, app: App) -> None:
    for number in (1, 2, 3):
        app.execute("send", {"n": number})
    committed = ("--status", "committed", "--provider-operation-id", "m_1")
    assert add(terminal, "--operation-id", "send:1", *committed, "--reference", "ref:1") == 0
    assert add(terminal, "--provider-reference", "ref:2", *committed) == 0
    assert {app.get("send:1").status, app.get("send:2").status} == {Status.CONFIRMED}
    version = app.get("send:2").version
    assert add(terminal, "--provider-reference", "ref:2", *committed) == 0
    assert (app.get("send:2").version, app.get("send:2").status) == (version, Status.CONFIRMED)
    assert add(terminal, "--operation-id", "send:3", *committed, "--reference", "ref:99") == 0  # kept, and believed of nothing
    op = app.get("send:3")
    kept = op.evidence[-1]
    assert (op.status, kept["facts"]["why"], kept["source"]) == (Status.OUTCOME_UNKNOWN, "reference_mismatch", "webhook:shop")
    assert add(terminal, "--operation-id", "absent", *committed) == 3
    for words in ((), ("--operation-id", "send:3", "--provider-reference", "ref:3")):
        assert add(terminal, *words, *committed) == 2


@pytest.mark.promise("S135", part="the exit code of the command")
def test_a_notice_for_an_unknown_reference_is_kept_and_harmless(terminal: Terminal, app: App) -> None:
    words = ("evidence", "add", "--source", "webhook", "--provider-reference", "ref:9", "--status", "committed")
    for _ in range(2):
        ended = terminal("-o", "json", *words)
        assert (ended.code, json.loads(ended.out)) == (0, {"kept_for": "ref:9", "operation_id": None})
    assert app.list() == []
    op = app.submit("send", {"n": 9})
    assert (app.get(op.operation_id).reason, app.get(op.operation_id).attempts) == ("evidence_before_dispatch", 0)


@pytest.mark.promise("P54", part="op show labels the actor as claimed")
def test_the_page_of_an_operation_is_a_sentence_the_evidence_and_one_next_command(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    app.execute("send", {"n": 2})
    app.submit("gift", {"n": 3})
    app.execute("pay", {"n": 4})
    app.submit("pay", {"n": 5})
    for operation_id, says, then in (
        ("pay:1", "is quarantined", "settled op explain pay:1"),
        ("send:2", "has an unknown outcome", "settled op probe send:2"),
        ("gift:3", "a person must approve it", "settled op explain gift:3"),
        ("pay:4", "is confirmed", "settled op events pay:4"),
        ("pay:5", "is prepared", "settled worker run"),
    ):
        lines = terminal("op", "show", operation_id).out.splitlines()
        assert lines[0].startswith(f"{operation_id} of ") and says in lines[0] and lines[0].endswith(".")
        assert [line for line in lines if "settled " in line] == [f"next: {then}"] and lines[-1] == f"next: {then}"
        if "evidence" in lines:
            assert lines.index("evidence") < next(at for at, line in enumerate(lines) if line.startswith("contract"))
    terminal("quarantine", "propose", "confirm", "pay:1", *FACTS, "--expected-version", "4")
    text = terminal("op", "show", "pay:1").out
    assert "by ana (claimed)" in text and text.endswith("next: settled quarantine list --pending\n")
    terminal("quarantine", "confirm", "pay:1", *FACTS, "--expected-version", "4")
    assert "actor (claimed) ana" in " ".join(terminal("op", "show", "pay:1").out.split())
