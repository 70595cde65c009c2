"""The two-person rule and decisions about many, at the command line."""

import json
from typing import Any

import pytest

from settled import App, Status
from tests.cli.conftest import Terminal
from tests.cli.terminal import Ended
from tests.cli.test_quarantine import FACTS, AtTerminal

RULE = 'two_person_risks = ["high"]\n'
BOB = ("--actor", "bob", "--reason", "I see the same")


def quarantine(terminal: Terminal, *words: str) -> Ended:
    return terminal("-o", "json", "quarantine", *words)


def propose(terminal: Terminal, verb: str, operation_id: str, *more: str) -> Any:
    ended = quarantine(terminal, "propose", verb, operation_id, *FACTS, "--expected-version", "4", *more)
    assert ended.code == 0, ended
    return json.loads(ended.out)


@pytest.mark.promise("S119", part="the command line")
def test_a_second_person_approves_what_a_first_one_proposed(terminal: Terminal, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    (terminal.folder / "settled.toml").write_text(RULE)
    terminal.lost(app)
    direct = quarantine(terminal, "confirm", "pay:1", *FACTS, "--expected-version", "4")
    assert (direct.code, direct.out) == (4, "")
    assert "settled quarantine propose confirm pay:1" in direct.err
    said = propose(terminal, "confirm", "pay:1", "--output-json", '{"paid": 1}')
    number = str(said["proposal"])
    assert f"settled quarantine approve pay:1 --proposal {number}" in said["next"]
    (pending,) = terminal.json("quarantine", "list", "--pending")
    assert [pending[name] for name in ("operation_id", "proposal", "verb", "proposed_by")] == ["pay:1", said["proposal"], "confirm", "ana"]
    again = quarantine(terminal, "propose", "reject", "pay:1", *FACTS, "--expected-version", "4")
    assert again.code == 4 and "decline" in again.err
    for words, code, says in (
        ((*BOB, "--proposal", number), 4, "a second person"),
        (BOB, 2, f"proposal {number} (confirm) stands"),
        ((*BOB, "--proposal", "99"), 4, "cannot be decided"),
    ):
        ended = quarantine(terminal, "approve", "pay:1", *words)
        assert (ended.code, ended.out) == (code, "") and says in ended.err, ended
    assert app.get("pay:1").version == 4
    monkeypatch.setenv("SUDO_USER", "bob")
    ended = quarantine(terminal, "approve", "pay:1", *BOB, "--proposal", number)
    shown = json.loads(ended.out)
    assert (ended.code, shown["status"], shown["output"], shown["resolved"]) == (0, "confirmed", {"paid": 1}, True)
    assert terminal.json("quarantine", "list", "--pending") == []


@pytest.mark.promise("S119", part="a retry is typed by whoever approves it")
def test_who_approves_a_retry_types_the_id_once_more(terminal: Terminal, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    (terminal.folder / "settled.toml").write_text(RULE)
    terminal.lost(app)
    number = str(propose(terminal, "authorize-retry", "pay:1")["proposal"])
    monkeypatch.setenv("SUDO_USER", "bob")
    for more in ((), ("--confirm-operation-id", "pay:2")):
        assert quarantine(terminal, "approve", "pay:1", *BOB, "--proposal", number, *more).code == 2
    assert app.get("pay:1").status is Status.QUARANTINED
    done = quarantine(terminal, "approve", "pay:1", *BOB, "--proposal", number, "--confirm-operation-id", "pay:1")
    assert (done.code, json.loads(done.out)["status"]) == (0, "prepared")


@pytest.mark.promise("S119", part="declined")
def test_a_declined_proposal_moves_nothing(terminal: Terminal, app: App) -> None:
    terminal.lost(app)
    number = str(propose(terminal, "reject", "pay:1")["proposal"])
    declined = json.loads(quarantine(terminal, "decline", "pay:1", *BOB, "--proposal", number).out)
    assert (declined["status"], declined["version"], declined["declined"]) == ("quarantined", 4, int(number))
    assert quarantine(terminal, "approve", "pay:1", *BOB, "--proposal", number).code == 4


@pytest.mark.promise("P50", part="a named authenticator")
def test_an_authenticator_of_the_settings_says_who_acts(terminal: Terminal, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"people_{abs(hash(terminal.folder))}"
    (terminal.folder / f"{module}.py").write_text("def who_acts():\n    return 'cleo@bank'\n")
    (terminal.folder / "settled.toml").write_text(f'[people]\nauthenticator = "{module}:who_acts"\n')
    terminal.lost(app)
    assert quarantine(terminal, "confirm", "pay:1", *FACTS, "--expected-version", "4").code == 0
    said = app.events("pay:1")[-1].data
    assert (said["actor"], said["principal"]) == ("ana", "cleo@bank") and said["os_user"]
    terminal.lost(app, n=2)
    (terminal.folder / "settled.toml").write_text(f'[people]\nauthenticator = "{module}:nobody"\n')
    ended = quarantine(terminal, "confirm", "pay:2", *FACTS, "--expected-version", "4")
    assert ended.code == 78 and f"{module}:nobody" in ended.err


def test_what_waits_is_listed_by_risk_and_age_and_says_whether_it_can_be_probed(terminal: Terminal, app: App) -> None:
    for name, risk in (("cheap", "low"), ("dear", "financial")):

        @app.effect(name=name, operation_id=lambda a, name=name: f"{name}:{a['n']}", isolation="thread", network_drain=0, risk=risk)
        def handler(arguments: dict[str, Any]) -> None:
            raise RuntimeError("lost")

    for name, number in (("cheap", 1), ("pay", 2), ("dear", 3), ("pay", 4), ("dear", 5)):
        terminal.lost(app, name, n=number)
    found = terminal.json("quarantine", "list")
    assert [one["operation_id"] for one in found] == ["dear:3", "dear:5", "pay:2", "pay:4", "cheap:1"]
    assert {one["probe"] for one in found} == {"no"}
    assert {"version", "waiting_since", "risk"} <= found[0].keys()
    assert [one["operation_id"] for one in terminal.json("quarantine", "list", "--risk", "low")] == ["cheap:1"]
    assert [one["operation_id"] for one in terminal.json("quarantine", "list", "--contract", "pay", "--limit", "1")] == ["pay:2"]
    assert terminal.json("quarantine", "list", "--older-than", "3600") == []


def test_many_are_decided_only_as_they_were_counted(terminal: Terminal, app: App) -> None:
    for number in (1, 2, 3):
        terminal.lost(app, n=number)
    terminal.lost(app, "drain", n=4)
    unselected = quarantine(terminal, "reject-all", *FACTS, "--yes")
    assert unselected.code == 2 and "nothing is selected" in unselected.err
    counted = terminal.json("quarantine", "reject-all", "--contract", "pay")
    assert (counted["count"], counted["selection"].split(":")[0]) == (3, "3")
    text = terminal("quarantine", "reject-all", "--contract", "pay")
    assert text.code == 0 and "Nothing was changed" in text.err and counted["selection"] in text.err and "pay:3" in text.out
    many = ("quarantine", "reject-all", "--contract", "pay", *FACTS, "--yes")
    assert terminal(*many).code == 2
    assert app.get("pay:1").status is Status.QUARANTINED
    terminal.lost(app, n=5)
    moved = terminal(*many, "--selection", counted["selection"])
    assert moved.code == 4 and "Count again" in moved.err
    assert {app.get(f"pay:{number}").status for number in (1, 2, 3, 5)} == {Status.QUARANTINED}
    code = terminal.json("quarantine", "reject-all", "--contract", "pay")["selection"]
    done = terminal("-o", "json", *many, "--selection", code)
    assert (done.code, {one["status"] for one in json.loads(done.out)}) == (0, {"rejected"})
    assert app.events("pay:1")[-1].data["seen_version"] == 4
    drained = terminal.json("quarantine", "reject-all", "--contract", "drain")["selection"]
    refused = terminal("-o", "json", "quarantine", "reject-all", "--contract", "drain", *FACTS, "--yes", "--selection", drained)
    (one,) = json.loads(refused.out)
    assert (refused.code, one["done"]) == (4, False) and "--assert-nothing-can-arrive" in one["problem"]


def test_a_wrong_or_stale_selection_of_nothing_is_no_success(terminal: Terminal, app: App) -> None:
    """A script that goes on after `exit 0` must not believe that something was decided."""
    terminal.lost(app, n=1)
    stale = terminal.json("quarantine", "reject-all", "--contract", "pay")["selection"]
    settled = (*FACTS, "--yes", "--selection", stale)
    assert quarantine(terminal, "reject-all", "--contract", "pay", *settled).code == 0
    for verb in ("confirm-all", "reject-all"):
        again = quarantine(terminal, verb, "--contract", "pay", *settled)
        assert again.code == 4 and again.out == "" and "the selection is now 0:" in again.err, again
        misspelt = quarantine(terminal, verb, "--contract", "pya", *settled)
        assert misspelt.code == 3 and "'pya'" in misspelt.err and "pay" in misspelt.err, misspelt
        assert quarantine(terminal, verb, "--risk", "low", *FACTS, "--yes").code == 2
        assert quarantine(terminal, verb, "--risk", "low", *FACTS, "--yes", "--selection", "nonsense").code == 4
    empty = terminal.json("quarantine", "reject-all", "--contract", "pay")["selection"]
    assert terminal.json("quarantine", "reject-all", "--contract", "pay", *FACTS, "--yes", "--selection", empty) == []


def test_a_selection_without_yes_where_nobody_can_be_asked_decides_nothing_and_says_so(terminal: Terminal, app: App) -> None:
    terminal.lost(app, n=1)
    code = terminal.json("quarantine", "reject-all", "--contract", "pay")["selection"]
    for answer in ((), ("-o", "json")):
        ended = terminal(*answer, "quarantine", "reject-all", "--contract", "pay", *FACTS, "--selection", code)
        assert (ended.code, ended.out) == (2, "") and "--yes" in ended.err
    assert app.get("pay:1").status is Status.QUARANTINED


def test_a_misspelt_contract_has_no_empty_list(terminal: Terminal, app: App) -> None:
    app.submit("pay", {"n": 1})
    assert terminal("quarantine", "list", "--contract", "pya").code == 3
    assert terminal.json("quarantine", "list", "--contract", "pay") == []


def test_no_retry_of_an_unknown_outcome_is_authorized_in_bulk(terminal: Terminal, app: App) -> None:
    assert not [one for one in terminal("quarantine", "--help").out.split() if one.startswith("authorize-") and one.endswith("all")]
    terminal.lost(app)
    one, all_of_them = "authorize-retry", "authorize-retry-all"
    for verb, *words in ((one, "--contract", "pay"), (all_of_them, "--risk", "high"), (one, "pay:1", "pay:2")):
        assert quarantine(terminal, verb, *words, *FACTS).code == 2
    assert app.get("pay:1").status is Status.QUARANTINED


@pytest.mark.parametrize(
    ("lines", "then", "code"),
    [
        (("ana", "never arrived", "T-1", "2"), b"", 0),
        (("ana", "never arrived", "T-1", "yes"), b"", 2),
        (("ana", "never arrived", "T-1", "1"), b"", 2),
        (("ana", "never arrived", "T-1"), b"\x04", 2),
        ((), b"\x04", 2),
    ],
)
def test_at_a_terminal_the_count_is_typed_or_nothing_changes(
    terminal: Terminal, app: App, lines: tuple[str, ...], then: bytes, code: int
) -> None:
    terminal.lost(app, n=1)
    terminal.lost(app, n=2)
    ended = AtTerminal(terminal.folder, "quarantine", "reject-all", "--contract", "pay").end(*lines, then=then)
    assert ended.code == code, ended
    wanted = Status.REJECTED if code == 0 else Status.QUARANTINED
    assert {app.get("pay:1").status, app.get("pay:2").status} == {wanted}
