"""Certification: what an honest contract survives, and that each false claim is caught with its smallest case."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled.testing import TROUBLES, Sandbox
from settled_worker.testing.certify import certify
from settled_worker.testing.judging import (
    CLAIM_ABSENCE,
    CLAIM_FINDS,
    CLAIM_FOUND,
    CLAIM_IDENTITY,
    CLAIM_KEY,
    CLAIM_NOT_SENT,
    CLAIM_REJECTED,
    CLAIM_RETURN,
    judge,
)
from settled_worker.testing.points import NONE, POINTS, Round, plan_rounds
from settled_worker.testing.rounds import play
from settled_worker.testing.shortening import scale
from settled_worker.testing.starting import Setting

APPS = Path(__file__).with_name("apps")
PATIENT_SECONDS = 100.0  # on a busy machine another worker starts late
BY_NAME = {one.name: one for one in TROUBLES}


@pytest.fixture(scope="module")
def claims() -> Iterator[Any]:
    sys.path.insert(0, str(APPS))
    import claims

    yield claims
    sys.path.remove(str(APPS))


@contextlib.contextmanager
def setting(claims: Any, name: str, sandbox: Sandbox, folder: Path) -> Iterator[Setting]:
    environment = sandbox.open(folder)
    contract = claims.app.contracts[name]
    try:
        yield Setting(
            theirs=claims.app,
            app_reference="claims:app",
            contract=name,
            terms={name: scale(contract.terms, PATIENT_SECONDS)},
            sandbox=sandbox,
            environment=environment,
            here=APPS,
        )
    finally:
        sandbox.close()


ROUNDS = [
    ("honest", "before submit", NONE, ("none", "answer lost")),
    ("honest", "after submit", "full", ("none", "answer lost")),
    ("honest", "before claim", "busy", ("none", "answer lost")),
    ("honest", "after claim", "full", ("none", "answer lost")),
    ("honest", "entered", NONE, ("none", "lost before")),
    ("honest", "sending", "clock", ("none", "committed late")),
    ("honest", "mid-request", NONE, ("none", "lost before", "reads stale")),
    ("honest_process", "after commit", NONE, ("none", "search broken")),
    ("honest_key", "after commit", "busy", ("none",)),
    ("honest_window", "after commit", "outage", ("none",)),
    ("honest", "returned", "full", ("none", "answer lost", "error after")),
    ("honest", "before end", NONE, ("none", "answer lost", "rejected")),
    ("honest", "after end", "clock", ("none", "answer lost", "pages cut")),
    ("honest", "before takeover", NONE, ("none", "answer lost")),
    ("honest", "after takeover", "busy", ("none", "answer lost")),
    ("honest", "before answer", NONE, ("answer lost", "committed late")),
    ("honest", "after answer", "full", ("answer lost", "wrong identity")),
]


@pytest.mark.promise("S76")  # with the false claims below, and what ends with 1 in tests/cli/test_certify.py
@pytest.mark.parametrize(("contract", "point", "host", "troubles"), ROUNDS, ids=[f"{one[1]}-{one[2]}" for one in ROUNDS])
def test_a_worker_killed_at_any_point_neither_doubles_nor_loses_an_effect(
    claims: Any, tmp_path: Path, contract: str, point: str, host: str, troubles: tuple[str, ...]
) -> None:
    one = Round(point, host, tuple(BY_NAME[name] for name in troubles))
    sandbox = {"honest_key": claims.keyed, "honest_window": claims.forgetful}.get(contract, claims.sandbox)
    (tmp_path / "sandbox").mkdir()
    with setting(claims, contract, sandbox, tmp_path / "sandbox") as shared:
        cases = play(shared, one, tmp_path / "round")
    assert [judge(case) for case in cases] == [None] * len(troubles), cases
    assert any(case.at_point for case in cases), cases  # a kill that never fell shows nothing
    log = (tmp_path / "round" / "workers.log").read_text()
    assert log.count('"worker.started"') >= (3 if point.endswith("takeover") else 1 if point.endswith("submit") else 2)
    for case in cases:
        if case.trouble == "rejected":  # the refusal that died with its worker is no evidence: found absent, it is asked for again
            assert (case.outcome, case.effects) in (("FAILED", 0), ("CONFIRMED", 1))
        elif case.trouble not in ("search broken", "wrong identity"):
            assert (case.outcome, case.effects) == ("CONFIRMED", 1), case


@pytest.mark.promise("S76", part="an outage that outlasts the window in which the provider knows the key")
def test_after_an_outage_longer_than_the_keys_window_a_person_is_asked_and_nothing_is_repeated(claims: Any) -> None:
    contract, sandbox = claims.app.contracts["honest_window"], claims.forgetful
    chosen: dict[str, Any] = {"points": ("after commit",), "hosts": ("long outage",), "troubles": ("none",), "here": APPS}
    certificate = certify(claims.app, contract, sandbox, app_reference="claims:app", key_seconds=1.0, **chosen)
    (case,) = certificate.cases
    assert certificate.passed and case.at_point, case
    assert (case.outcome, case.effects, case.attempts) == ("UNKNOWN", 1, 1), case
    assert sandbox.key_window == 3600.0  # shortened while it was played, and no longer


def test_every_point_is_tried_by_these_rounds() -> None:
    assert {one[1] for one in ROUNDS} == set(POINTS) - {NONE}
    every = plan_rounds(TROUBLES, points=POINTS, hosts=("none", "busy", "full", "clock"), quick=False, per_round=7)
    assert len(every) == len(POINTS) * 4 * 2
    assert sum(len(one.troubles) for one in every) == len(POINTS) * 4 * len(TROUBLES)
    quick = plan_rounds(TROUBLES, points=POINTS, hosts=("none", "busy", "full", "clock"), quick=True, per_round=7)
    assert len(quick) == (len(POINTS) + 3) * 2
    outages = plan_rounds(TROUBLES, points=POINTS, hosts=("outage", "long outage"), quick=True, per_round=7)
    assert {one.point for one in outages} == {"mid-request", "after commit"} and len(outages) == 4


FALSE = [
    ("false_guarantee", CLAIM_KEY, "answer lost", "2 effects"),
    ("false_window", CLAIM_KEY, "answer lost", "2 effects"),
    ("false_absence", CLAIM_ABSENCE, "committed late", "2 effects"),
    ("false_identity", CLAIM_IDENTITY, "answer lost", "names no operation"),
    ("false_blind", CLAIM_FINDS, "answer lost", "never found it"),
    ("false_ghosts", CLAIM_FOUND, "lost before", "there is no effect"),
    ("false_rejected", CLAIM_REJECTED, "answer lost", "there is an effect"),
    ("false_not_sent", CLAIM_NOT_SENT, "answer lost", "effects of one operation"),
    ("false_return", CLAIM_RETURN, "lost before", "there is no effect"),
]


@pytest.mark.promise("S76", part="each planted false claim is named, with its smallest case")
@pytest.mark.parametrize(("contract", "claim", "trouble", "what"), FALSE, ids=[one[0] for one in FALSE])
def test_a_false_claim_is_caught_with_its_smallest_case(claims: Any, contract: str, claim: str, trouble: str, what: str) -> None:
    certificate = certify(
        claims.app,
        claims.app.contracts[contract],
        {"false_absence": claims.slow, "false_window": claims.forgetful}.get(contract, claims.sandbox),
        app_reference="claims:app",
        points=("after commit",) if contract == "false_window" else (NONE,),
        hosts=("outage",) if contract == "false_window" else (NONE,),
        key_seconds=PATIENT_SECONDS,
        troubles=("none", trouble),
        here=APPS,
    )
    assert not certificate.passed and certificate.verdict == "UNSAFE UNDER TESTED CONDITIONS"
    false = {one.name: one for one in certificate.claims if one.false_in}
    assert list(false) == [claim], [one.to_json() for one in certificate.cases]
    smallest = false[claim].false_in[0]
    assert what in smallest.what and (smallest.case.host == "outage" or (smallest.case.point, smallest.case.host) == (NONE, NONE))
    checks = {one.name: one.passed for one in certificate.to_report().checks}
    assert checks[f"claim: {claim}"] is False and not certificate.to_report().passed


def test_a_certificate_of_nothing_has_not_passed(claims: Any) -> None:
    contract = claims.app.contracts["honest"]
    certificate = certify(claims.app, contract, claims.sandbox, app_reference="claims:app", troubles=(), here=APPS)
    assert not certificate.passed and not certificate.to_report().passed and certificate.cases == ()
