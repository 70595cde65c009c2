"""Messages between worker, supervisor and runner: whole, bounded, and nothing but JSON."""

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from settled.core.evidence import ProbeResult
from settled.core.moment import Moment
from settled.core.words import FenceBasis
from settled.execution.job import End, Job, Report
from settled.execution.wire import Line, WireError, decode, encode, job_from_wire, job_to_wire, report_from_wire, report_to_wire
from tests.conftest import eventually
from tests.lib.execution.inprocess import make_job

BYTES_MAX = 1_000_000


@pytest.fixture
def ends() -> Iterator[tuple[Line, Line]]:
    left, right = socket.socketpair()
    lines = Line(left, BYTES_MAX), Line(right, BYTES_MAX)
    yield lines
    for line in lines:
        line.close()


def full_report(job: Job) -> Report:
    """Return a report with no field at its default."""
    return Report(
        job=job,
        end=End.ANSWERED,
        output='{"a":"\\u0000"}',
        postcondition=False,
        answer=ProbeResult.committed(reference="r", output=None, evidence={"n": 1}),
        error_class="E",
        error_text="text \udc80",
        retryable=True,
        interrupt="SystemExit",
        provider_operation_id="p",
        fence=FenceBasis.RAISED,
        sending=True,
        ended=Moment(1, 2, "boot"),
        late=True,
    )


def test_a_job_comes_through_unchanged() -> None:
    job = make_job(attempts=((1, 5), (2, 9)), slot=3, enter_by_boot_us=7, arguments='{"k":"\\u2028\\""}')
    assert job_from_wire(decode(encode({"job": job_to_wire(job)}, BYTES_MAX))["job"]) == job


def test_every_field_of_a_report_comes_through_unchanged() -> None:
    job = make_job()
    report = full_report(job)
    for field in Report._fields:
        assert field not in Report._field_defaults or getattr(report, field) != Report._field_defaults[field], field
    assert report_from_wire(decode(encode(report_to_wire(report), BYTES_MAX)), job) == report


@pytest.mark.parametrize(
    "changes",
    [
        {"end": "perhaps"},
        {"output": {"id": 1}},
        {"postcondition": 1},
        {"retryable": "yes"},
        {"provider_operation_id": 7},
        {"answer": {"status": "committed", "extra": 1}},
        {"answer": []},
        {"fence": "surely"},
        {"ended": [1, 2]},
        {"ended": [True, 2, "boot"]},
        {"job": {}},
        {"unknown": 1},
    ],
)
def test_a_report_of_another_shape_is_refused(changes: dict[str, Any]) -> None:
    job = make_job()
    with pytest.raises(WireError):
        report_from_wire({**report_to_wire(full_report(job)), **changes}, job)


@pytest.mark.parametrize("data", [None, [], "report", 7])
def test_what_is_no_object_is_refused_as_job_and_as_report(data: Any) -> None:
    with pytest.raises(WireError):
        report_from_wire(data, make_job())
    with pytest.raises(WireError):
        job_from_wire(data)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(WireError):
        decode(line)


def test_a_line_over_the_limit_is_refused_before_it_is_sent(ends: tuple[Line, Line]) -> None:
    with pytest.raises(WireError):
        ends[0].send({"text": "x" * BYTES_MAX})


def test_a_line_over_the_limit_is_refused_before_it_is_whole(ends: tuple[Line, Line]) -> None:
    sender, receiver = ends[0].end, ends[1]
    sender.setblocking(False)

    def is_refused() -> bool:
        try:
            sender.send(b"x" * 100_000)
            assert not list(receiver.receive())
        except BlockingIOError:
            list(receiver.receive())
        except WireError:
            return True
        return False

    assert eventually(is_refused)


def test_messages_larger_than_the_socket_arrive_whole_and_in_order(ends: tuple[Line, Line]) -> None:
    sender, receiver = ends
    for number in range(2):
        sender.send({"number": number, "text": "ü" * 400_000})
    assert sender.pending
    got: list[dict[str, Any]] = []

    def is_all_there() -> bool:
        sender.push()
        got.extend(receiver.receive())
        return len(got) == 2

    eventually(is_all_there)
    assert [message["number"] for message in got] == [0, 1] and len(got[1]["text"]) == 400_000
    assert not sender.pending


def test_an_end_that_stops_reading_is_not_written_to_without_a_limit(ends: tuple[Line, Line]) -> None:
    with pytest.raises(WireError):
        for _ in range(10):
            ends[0].send({"text": "x" * 900_000})


def test_an_unfinished_line_at_the_end_is_nobodys_word(ends: tuple[Line, Line]) -> None:
    sender, receiver = ends
    sender.send({"whole": True})
    sender.end.send(b'{"half":')
    sender.close()
    assert list(receiver.receive()) == [{"whole": True}] and receiver.at_end


def test_what_came_whole_before_a_broken_line_is_heard_first(ends: tuple[Line, Line]) -> None:
    sender, receiver = ends
    sender.send({"number": 1})
    sender.end.send(b"garbage\n")
    heard = receiver.receive()
    assert next(heard) == {"number": 1}
    with pytest.raises(WireError):
        next(heard)


def test_messages_that_leave_together_arrive_one_by_one_and_descriptors_with_their_own(ends: tuple[Line, Line]) -> None:
    sender, receiver = ends
    reads, writes = os.pipe()
    for number in range(100):
        sender.queue({"number": number}, (reads,) if number == 70 else ())
    assert sender.pending and not list(receiver.receive())
    sender.push()
    os.close(reads)
    assert [message["number"] for message in receiver.receive()] == list(range(100))
    assert not sender.pending and len(receiver.descriptors) == 1
    os.close(writes)


def test_descriptors_travel_with_their_messages_and_are_closed_if_nobody_takes_them(ends: tuple[Line, Line]) -> None:
    sender, receiver = ends
    reads, writes = zip(*(os.pipe() for _ in range(3)), strict=True)
    for number, end in enumerate(reads):
        sender.send({"number": number}, (end,))
        os.close(end)
    got: list[dict[str, Any]] = []
    eventually(lambda: got.extend(receiver.receive()) or len(got) == 3)
    assert not any(os.get_inheritable(descriptor) for descriptor in receiver.descriptors)
    os.write(writes[0], b"first")
    first = receiver.descriptors.popleft()
    assert os.read(first, 10) == b"first"
    os.close(first)
    receiver.close()
    for end in writes[1:]:
        with pytest.raises(BrokenPipeError):
            os.write(end, b"nobody reads")
    for end in writes:
        os.close(end)
