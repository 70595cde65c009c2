"""`settled certify`: its exit codes and its forms, on contracts in modules of their own."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Terminal
from tests.cli.terminal import Ended, run_process

APPS = Path(__file__).parents[1] / "worker" / "testing" / "apps"
NARROW = ("--point", "none", "--host", "none", "--trouble", "none", "--trouble", "answer lost")


def certify(*arguments: str) -> Ended:
    return run_process(APPS, "certify", *arguments, seconds=110)


class Page(HTMLParser):
    """The words of a page, and whatever it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "data", "action")]
        self.loads += [tag] if tag in ("script", "iframe", "object", "link") else []
        self.open += [] if tag in ("meta", "br") else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.promise("S76", part="a planted unsafe contract: exit 1, in every form")
def test_a_false_contract_ends_with_1_and_its_page_json_and_junit_name_the_claim(tmp_path: Path) -> None:
    made = tmp_path / "made"
    outputs = [word for name in ("c.html", "c.json", "c.xml", "c.txt") for word in ("--output", str(made / name))]
    ended = certify("claims:false_guarantee", *NARROW, *outputs)
    assert ended.code == 1, ended
    assert ended.out.endswith("UNSAFE UNDER TESTED CONDITIONS\n") and "Traceback" not in ended.err
    assert re.search(r"1 of 1 rounds", ended.err)
    told = json.loads((made / "c.json").read_text())
    (false,) = (one for one in told["claims"] if one["verdict"] == "false")
    assert "provider_idempotency_guaranteed" in false["claim"] and false["smallest"]["seen"]["effects"] > 1
    assert int(ElementTree.parse(made / "c.xml").getroot().get("failures") or 0) >= 2
    page = Page()
    text = (made / "c.html").read_text()
    page.feed(text)
    words = " ".join(page.words)
    assert (page.loads, page.open) == ([], []) and "http" not in text
    assert "UNSAFE UNDER TESTED CONDITIONS" in words and "What this page does not say" in words and "smallest case" in words


@pytest.mark.promise("S76", part="an honest contract in process isolation: exit 0")
def test_an_honest_contract_in_processes_of_its_own_ends_with_0() -> None:
    ended = certify("claims:honest_process", "--sandbox", "claims:sandbox", *NARROW)
    assert ended.code == 0, ended
    assert ended.out.endswith("\nSAFE UNDER TESTED CONDITIONS\n")


@pytest.mark.promise("S122", part="certify")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere:pay",), 78, "cannot be imported: ModuleNotFoundError"),
        (("claims:nobody",), 3, "nobody"),
        (("claims",), 2, "is not of the form"),
        (("claims:honest", "--sandbox", "claims"), 2, "is not of the form"),
        (("claims:honest", "--app", ":app"), 2, "is not of the form"),
        (("claims:APPLICATION", "--app", "claims:nothing"), 78, "cannot be imported: AttributeError"),
        (("claims:provider", "--app", "claims:app"), 78, "not an effect or a contract"),
        (("claims:honest", "--sandbox", "claims:nowhere"), 78, "cannot be imported"),
        (("claims:honest", "--sandbox", "claims:not_a_sandbox"), 78, "not a settled.testing.Sandbox"),
        (("claims:honest", "--sandbox", "claims:Unmade"), 78, "cannot be made: KeyError"),
        (("claims:honest", "--sandbox", "claims:shut"), 78, "cannot be opened: PermissionError: keep out"),
        (("claims:honest", "--sandbox", "claims:for_others"), 78, "gives no arguments that 'honest' takes"),
        (("claims:honest", "--sandbox", "claims:broken"), 78, "RuntimeError: not written yet"),
        (("claims:honest", "--point", "nowhere"), 2, "nowhere"),
        (("claims:honest_process", "--point", "sending"), 2, "announces_sending=True"),
        (("claims:honest", "--host", "long outage"), 2, "a finite window"),
        (("claims:honest", "--trouble", "refused"), 2, "a sandbox that can make it"),
        ((), 2, "Missing argument"),
    ],
)
def test_what_cannot_be_certified_gets_one_sentence_and_starts_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, words: str
) -> None:
    monkeypatch.chdir(APPS)
    ended = terminal("certify", *arguments)
    assert (ended.code, ended.out) == (code, ""), ended
    assert words in ended.err and "Traceback" not in ended.err
