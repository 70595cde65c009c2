"""Reports with exact types and a qualified verdict."""

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from settled.testing import SafetyCheck, SafetyReport

GOOD = SafetyCheck(name="one effect", passed=True, facts={"committed_effect_count": 1})
BAD = SafetyCheck(name="two <effects>\x1b[31m", passed=False, detail="counted 2")


@pytest.mark.promise("D57")
@pytest.mark.parametrize("passed", ["false", "true", 1, 0, None])
def test_a_verdict_is_an_exact_bool(passed: Any) -> None:
    with pytest.raises(TypeError, match="passed"):
        SafetyCheck(name="x", passed=passed)


class LookAlike:
    name, passed, detail, facts = "x", True, "", {}


class Subclass(SafetyCheck):
    """Not exactly a SafetyCheck: it could say anything."""


@pytest.mark.promise("D57")
@pytest.mark.parametrize("checks", [[GOOD], (LookAlike(),), (GOOD, Subclass(name="x", passed=True)), GOOD, None, ("passed",)])
def test_a_report_takes_a_tuple_of_exact_checks(checks: Any) -> None:
    with pytest.raises(TypeError, match="checks"):
        SafetyReport(checks=checks)


@pytest.mark.promise("D57", part="an empty report")
@pytest.mark.promise("D58")
def test_the_verdict_speaks_of_the_tested_conditions_in_every_form() -> None:
    for checks, verdict in [((), "UNSAFE"), ((GOOD,), "SAFE"), ((GOOD, BAD), "UNSAFE")]:
        report = SafetyReport(checks=checks)
        qualified = f"{verdict} UNDER TESTED CONDITIONS"
        assert report.passed is (verdict == "SAFE")
        assert report.verdict == qualified
        assert report.to_text().splitlines()[-1] == qualified
        assert json.loads(json.dumps(report.to_json()))["verdict"] == qualified
        suite = ElementTree.fromstring(report.to_junit().partition("\n")[2])
        assert suite.find("properties/property[@name='verdict']").get("value") == qualified  # type: ignore[union-attr]
        assert (suite.get("failures") == "0") is report.passed
        assert len(suite.findall("testcase")) == int(suite.get("tests") or 0) >= 1


def test_hostile_text_stays_harmless_in_every_form() -> None:
    report = SafetyReport(checks=(BAD,), name="a \x00 name")
    for form in (report.to_text(), report.to_junit()):
        assert "\x1b" not in form and "\x00" not in form
    failure = ElementTree.fromstring(report.to_junit().partition("\n")[2]).find("testcase/failure")
    assert failure is not None and failure.get("message") == "counted 2"


@pytest.mark.parametrize("facts", [{"x": {1}}, [], {"x": float("nan")}, {1: 2}])
def test_facts_are_strict_json_and_kept_apart_from_the_caller(facts: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        SafetyCheck(name="x", passed=True, facts=facts)
    given = {"x": [1]}
    check = SafetyCheck(name="x", passed=True, facts=given)
    given["x"].append(2)
    assert check.facts == {"x": [1]}


def test_the_text_fits_a_narrow_terminal_and_loses_no_word() -> None:
    detail = "2 effects of one operation: " + "the answer is lost, " * 8
    comparison = {"name": "side by side", "naive retry": {f"fact_{number}": "a value" for number in range(12)}}
    checks = (SafetyCheck(name="a claim that is long: " + "so long " * 12, passed=False, detail=detail),)
    text = SafetyReport(name="a", checks=checks, comparison=comparison).to_text()
    assert max(map(len, text.splitlines())) < 80
    told = " ".join(text.split())
    assert detail.strip() in told and "naive retry: fact 0 a value, fact 1" in told and told.count("so long") == 12
