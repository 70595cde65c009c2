"""The fake provider: what each fault does to a call, to a reader, and to the truth."""

from pathlib import Path
from typing import Any

import pytest

from settled import ProbeResult
from settled.core.evidence import ProbeStatus
from settled.testing import (
    AnswerLate,
    AnswerLost,
    AnswerMalformed,
    FakeProvider,
    Fault,
    ProviderClient,
    ProviderError,
    ProviderRejected,
    ReadFault,
    VirtualClock,
    look_for_payment,
    running_provider,
    serving,
)

ARGUMENTS = {"payment": "INV-1", "amount_cents": 500, "currency": "eur"}
REQUEST = {"amount_cents": 500, "currency": "eur"}
REFERENCE = "payment:INV-1"
ENDS = [
    (Fault.NONE, None, 1),
    (Fault.REFUSE, ConnectionRefusedError, 0),
    (Fault.REJECT, ProviderRejected, 0),
    (Fault.FAIL_BEFORE_COMMIT, AnswerLost, 0),
    (Fault.LOSE_ANSWER, AnswerLost, 1),
    (Fault.ERROR_AFTER_COMMIT, ProviderError, 1),
    (Fault.COMMIT_TWICE, None, 2),
    (Fault.HANG, AnswerLate, 1),
    (Fault.MALFORMED_ANSWER, AnswerMalformed, 1),
    (Fault.FORGET_KEY, AnswerLost, 1),
]


def pay(provider: Any, key: str | None = None, **changed: Any) -> dict[str, Any]:
    answer: dict[str, Any] = provider.create({**REQUEST, **changed}, reference=REFERENCE, idempotency_key=key)
    return answer


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def provider(clock: VirtualClock) -> FakeProvider:
    return FakeProvider(clock=clock)


@pytest.mark.promise("P65")
@pytest.mark.parametrize(("fault", "error", "committed"), ENDS)
def test_a_fault_shows_one_end_and_one_truth_and_hits_once(fault: Fault, error: type[Exception] | None, committed: int) -> None:
    provider = FakeProvider(fault=fault, seconds=1.0 if fault is Fault.HANG else 0.0, clock=VirtualClock())
    if error is None:
        pay(provider)
    else:
        with pytest.raises(error):
            pay(provider)
    assert provider.count() == committed and provider.undecided == 0
    pay(provider)
    assert (provider.count(REFERENCE), provider.calls()) == (committed + 1, 1 if fault is Fault.REFUSE else 2)


@pytest.mark.promise("P65", part="same settings, same run")
def test_two_equal_runs_are_equal_in_every_effect_and_answer() -> None:
    def run() -> tuple[Any, ...]:
        clock = VirtualClock()
        provider = FakeProvider(clock=clock, idempotent=True, key_window=10, fault="lose_answer")
        told: list[Any] = []
        for index in range(6):
            provider.fail_next(tuple(Fault)[index], seconds=2.0)
            try:
                told.append(pay(provider, key=f"k{index % 2}"))
            except Exception as error:
                told.append(repr(error))
            clock.advance(3)
        return told, provider.effects, provider.find(REFERENCE), provider.calls()

    assert run() == run()


@pytest.mark.promise("D61", part="two calls, two effects, unless it deduplicates by key")
def test_it_deduplicates_nothing_unless_told_so_and_then_only_within_the_window(clock: VirtualClock) -> None:
    plain = FakeProvider(clock=clock)
    assert pay(plain, "k") != pay(plain, "k") and plain.count() == 2
    keyed = FakeProvider(clock=clock, idempotent=True, key_window=60)
    assert pay(keyed, "k") == pay(keyed, "k") and keyed.count() == 1
    with pytest.raises(ProviderError, match="another request"):
        pay(keyed, "k", amount_cents=1)
    pay(keyed)
    assert keyed.count() == 2
    clock.advance(61)
    pay(keyed, "k")
    assert keyed.count() == 3
    keyed.fail_next(Fault.FORGET_KEY)
    for _ in range(2):
        try:
            pay(keyed, "other")
        except AnswerLost:
            continue
    assert keyed.count() == 5


@pytest.mark.promise("D61")
def test_every_way_to_be_wrong_about_it_is_its_own_and_only_the_fence_proves_an_absence(clock: VirtualClock) -> None:
    plain = FakeProvider(clock=clock)
    pay(plain)
    pay(plain)
    assert plain.count() == 2
    for fault, error, effects in [
        (Fault.REJECT, ProviderRejected, 0), (Fault.FAIL_BEFORE_COMMIT, AnswerLost, 0), (Fault.HANG, AnswerLate, 1)
    ]:  # fmt: skip
        one = FakeProvider(fault=fault, seconds=5.0, clock=clock)
        with pytest.raises(error):
            pay(one)
        assert one.count() == effects
        shown = ProbeStatus.COMMITTED if effects else ProbeStatus.NOT_COMMITTED
        assert look_for_payment(one, ARGUMENTS).status is shown
        one.fail_reads(ReadFault.FALSE_NEGATIVE)
        assert not one.control() and look_for_payment(one, ARGUMENTS).status is ProbeStatus.UNKNOWN
        one.fail_reads(ReadFault.UNAVAILABLE)
        with pytest.raises(ConnectionError):
            look_for_payment(one, ARGUMENTS)
        assert one.count() == effects
    late = FakeProvider(fault=Fault.COMMIT_LATE, seconds=5.0, clock=clock)
    with pytest.raises(AnswerLost):
        pay(late)
    assert late.in_flight(REFERENCE) == 1 and not look_for_payment(late, ARGUMENTS).terminal
    clock.advance(6)
    assert late.in_flight(REFERENCE) == 0 and late.count() == 1


def test_a_late_commit_happens_at_its_time_however_late_somebody_asks(clock: VirtualClock) -> None:
    late = FakeProvider(idempotent=True, key_window=10.0, clock=clock)
    started_us = clock.now().boot_us
    late.fail_next(Fault.COMMIT_LATE, seconds=5)
    with pytest.raises(AnswerLost):
        pay(late, "key-1")
    clock.advance(30)
    assert late.effects[0].at_us == started_us + 5_000_000
    late.fail_reads(ReadFault.STALE, seconds=20)
    assert len(late.find(REFERENCE).found) == 1  # it is older than the lag
    late.create(REQUEST, reference=REFERENCE, idempotency_key="key-1")
    assert late.count() == 2  # its key was forgotten ten seconds after the commit, and not after the question


def test_a_late_commit_is_undecided_until_its_time_and_then_there(provider: FakeProvider, clock: VirtualClock) -> None:
    provider.fail_next(Fault.COMMIT_LATE, seconds=5)
    with pytest.raises(AnswerLost):
        pay(provider)
    assert (provider.count(), provider.in_flight(REFERENCE), provider.in_flight("another")) == (0, 1, 0)
    clock.advance(6)
    assert (provider.count(), provider.in_flight(REFERENCE)) == (1, 0)


@pytest.mark.promise("D61", part="lookup unavailable, false negative, positive control")
def test_a_read_fault_hides_what_is_there_and_changes_no_truth(provider: FakeProvider, clock: VirtualClock) -> None:
    pay(provider)
    for fault, sees, control in [
        (ReadFault.NONE, 1, True),
        (ReadFault.FALSE_NEGATIVE, 0, False),
        (ReadFault.LYING, 0, True),
        (ReadFault.PARTIAL_PAGE, 0, True),
    ]:
        provider.fail_reads(fault)
        assert (len(provider.find(REFERENCE).found), provider.control(), provider.count()) == (sees, control, 1)
    assert provider.find(REFERENCE).more == 2 and len(provider.find(REFERENCE, page=2).found) == 1
    provider.fail_reads(ReadFault.STALE, seconds=5)
    assert provider.find(REFERENCE).found == []
    clock.advance(6)
    assert len(provider.find(REFERENCE).found) == 1
    provider.fail_reads(ReadFault.WRONG_IDENTITY, reference=REFERENCE)
    assert provider.find(REFERENCE).found[0]["reference"] != REFERENCE and provider.find("another").found == []
    provider.fail_reads(ReadFault.UNAVAILABLE)
    for read in (provider.control, lambda: provider.find("another"), lambda: provider.in_flight("another")):
        with pytest.raises(ConnectionError):
            read()


PROBED = [
    (ReadFault.NONE, 1, ProbeStatus.COMMITTED, False),
    (ReadFault.PARTIAL_PAGE, 1, ProbeStatus.COMMITTED, False),
    (ReadFault.FALSE_NEGATIVE, 1, ProbeStatus.UNKNOWN, False),
    (ReadFault.WRONG_IDENTITY, 1, ProbeStatus.UNKNOWN, False),
    (ReadFault.NONE, 0, ProbeStatus.NOT_COMMITTED, True),
    (ReadFault.LYING, 1, ProbeStatus.NOT_COMMITTED, True),  # nobody can see through it
]


@pytest.mark.promise("D62")
@pytest.mark.parametrize(("fault", "paid", "status", "terminal"), PROBED)
def test_the_bundled_probe_says_only_what_its_reads_show(
    provider: FakeProvider, fault: ReadFault, paid: int, status: ProbeStatus, terminal: bool
) -> None:
    for _ in range(paid):
        pay(provider)
    provider.fail_reads(fault)
    answer = look_for_payment(provider, ARGUMENTS)
    assert (answer.status, answer.terminal) == (status, terminal)
    assert answer.reference == (None if status is ProbeStatus.UNKNOWN else REFERENCE)


@pytest.mark.promise("D62", part="the reference with other fields; the in-flight fence")
def test_the_bundled_probe_takes_no_other_request_for_its_own_and_waits_for_what_is_undecided(
    provider: FakeProvider, clock: VirtualClock
) -> None:
    provider.fail_next(Fault.COMMIT_LATE, seconds=5)
    with pytest.raises(AnswerLost):
        pay(provider)
    assert look_for_payment(provider, ARGUMENTS).status is ProbeStatus.PENDING
    clock.advance(6)
    assert look_for_payment(provider, ARGUMENTS).status is ProbeStatus.COMMITTED
    assert look_for_payment(provider, {**ARGUMENTS, "amount_cents": 1}) == ProbeResult.unknown(
        healthy=True, evidence={"source": "search by reference", "found": 1, "why": "our reference on another request"}
    )


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), True, "1", 1e9])
def test_a_time_that_cannot_be_meant_is_refused_and_nothing_is_armed(provider: FakeProvider, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        provider.fail_next(Fault.LOSE_ANSWER, seconds=wrong)
    with pytest.raises(ValueError, match="needs seconds"):
        provider.fail_next(Fault.HANG)
    with pytest.raises(ValueError, match="explode"):
        provider.fail_next("explode")
    pay(provider)
    assert provider.count() == 1


# ------------------------------------------------------------------ over HTTP


@pytest.mark.parametrize(("fault", "error", "committed"), [one for one in ENDS if one[0] is not Fault.REFUSE])
def test_the_http_form_has_the_same_ends_and_the_same_truth(fault: Fault, error: type[Exception] | None, committed: int) -> None:
    with serving() as server:
        client = ProviderClient(server.url, timeout=0.3 if fault is Fault.HANG else 10.0)
        client.fail_next(fault, reference=REFERENCE, seconds=1.0 if fault is Fault.HANG else 0.0)
        if error is None:
            pay(client)
        else:
            with pytest.raises(TimeoutError if fault is Fault.HANG else (error, ConnectionError) if error is AnswerLost else error):
                pay(client)
        assert server.provider.count(REFERENCE) == client.count(REFERENCE) == committed
        assert client.calls(REFERENCE) == 1


def test_probes_read_over_http_what_they_read_here() -> None:
    with serving() as server:
        client = ProviderClient(server.url)
        assert look_for_payment(client, ARGUMENTS).terminal
        pay(client)
        assert look_for_payment(client, ARGUMENTS) == look_for_payment(server.provider, ARGUMENTS)
        client.fail_reads("unavailable")
        with pytest.raises(ProviderError, match="503"):
            look_for_payment(client, ARGUMENTS)


def test_a_refused_connection_is_told_as_such() -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(ConnectionRefusedError):
        pay(ProviderClient(url))


def test_in_a_process_of_its_own_what_was_committed_outlives_kill_9_keys_included(tmp_path: Path) -> None:
    file = tmp_path / "made" / "effects.jsonl"
    with running_provider(file=file, idempotent=True) as first:
        first.client.fail_next("lose_answer", reference=REFERENCE)
        with pytest.raises(ConnectionError):
            pay(first.client, "k")
        assert first.client.wait(REFERENCE, "committed")
        first.process.kill()
        first.process.wait()
    with file.open("ab") as torn:
        torn.write(b'{"effect_id": "fx_0')
    with running_provider(file=file, idempotent=True) as second:
        assert second.client.count(REFERENCE) == 1
        assert pay(second.client, "k")["effect_id"] == "fx_000001" and second.client.count(REFERENCE) == 1
        pay(second.client)
        assert second.client.count(REFERENCE) == 2
    assert len(file.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/effects", {"reference": "", "request": {}}),
        ("POST", "/effects", {"reference": "r", "request": []}),
        ("POST", "/__faults", {"fault": "explode"}),
        ("POST", "/__faults", {"fault": "hang"}),
        ("POST", "/__reads", {"fault": 1}),
        ("GET", "/effects", None),
        ("GET", "/__wait?reference=r&what=done", None),
        ("GET", "/elsewhere", None),
    ],
)
def test_a_request_that_makes_no_sense_commits_nothing(method: str, target: str, body: Any) -> None:
    with serving() as server:
        status, _ = ProviderClient(server.url)._call(method, target, body)
        assert status in (400, 404) and server.provider.count() == 0
