"""Carry small JSON messages over a socket, one per line, and turn Job and Report into such messages and back.

Promise: nothing is read without a limit and nothing but plain JSON is ever decoded, so that whatever sits at the other end
can at most be refused. A message is handed over whole or not at all; descriptors that travel with messages keep their order.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, Final

from settled.core.evidence import ProbeResult
from settled.core.moment import Moment
from settled.core.words import FenceBasis, Isolation
from settled.execution.job import End, Job, Kind, Report

Message = dict[str, Any]

CHUNK_BYTES: Final = 65_536  # more of it would be memory that the kernel hands over and takes back for each look
CHUNKS_MAX: Final = 256  # at one call, so that one end that never stops talking does not keep its reader from all others
CONTROL_BYTES_MAX: Final = 16_384  # one message between a worker and its supervisor
SLACK_BYTES: Final = 1_048_576  # identities, error text, probe evidence and the braces around a body
_DESCRIPTORS_MAX: Final = 4
_AT_ONCE_MAX: Final = 64  # messages in one system call


class WireError(Exception):
    """What arrived cannot be a message: too long, not JSON, or of another shape."""


def line_bytes_max(body_bytes_max: int) -> int:
    """Return the limit of a line that carries a canonical text of `body_bytes_max` bytes.

    Twice the body: it travels as a JSON string, in which every quote and backslash gains one more byte.
    """
    return 2 * body_bytes_max + SLACK_BYTES


def encode(message: Mapping[str, Any], bytes_max: int) -> bytes:
    """Return the message as one line. Raises WireError if it is over the limit."""
    line = _as_json(message).encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate becomes its JSON escape
    if len(line) > bytes_max:
        raise WireError(f"a message of {len(line)} bytes is over the limit of {bytes_max}")
    return line


_as_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_from_json: Final = json.JSONDecoder().raw_decode


def decode(line: bytes) -> Message:
    """Return the message of one line. Raises WireError."""
    try:
        text = line.decode()
        message, end = _from_json(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a line of {len(line)} bytes is not JSON: {type(error).__name__}") from None
    if type(message) is not dict or text[end:].strip():
        raise WireError(f"a line of {len(line)} bytes is not a JSON object")
    return message


class Line:
    """One end of a socket over which lines travel. Never blocks; what cannot leave yet waits in `pending`."""

    def __init__(self, end: socket.socket, bytes_max: int) -> None:
        end.setblocking(False)
        self.end = end
        self.bytes_max = bytes_max
        self.descriptors: deque[int] = deque()  # received, in the order of the messages they came with
        self.at_end = False
        self._arrived = bytearray()
        self._searched = 0
        self._leaving: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._leaving_bytes = 0

    def fileno(self) -> int:
        return self.end.fileno()

    @property
    def pending(self) -> bool:
        """Whether something waits for the other end to read."""
        return bool(self._leaving)

    def send(self, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Queue one message and push. The caller keeps `descriptors` open until nothing is pending. Raises WireError."""
        self.queue(message, descriptors)
        self.push()

    def queue(self, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Let one message wait for the next push, which takes many for the price of one. Raises WireError."""
        line = encode(message, self.bytes_max)
        if self._leaving_bytes + len(line) > 2 * self.bytes_max:
            raise WireError("the other end has stopped reading")
        self._leaving.append((line, descriptors))
        self._leaving_bytes += len(line)

    def push(self) -> None:
        """Write what can be written now."""
        while self._leaving and not self.at_end:
            try:
                sent = self._write()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.at_end = True
                break
            self._leaving_bytes -= sent
            while self._leaving and sent >= len(self._leaving[0][0]):
                sent -= len(self._leaving.popleft()[0])
            if sent:
                self._leaving[0] = (self._leaving[0][0][sent:], ())  # the descriptors went with the first byte
        if self.at_end:
            self._leaving.clear()
            self._leaving_bytes = 0

    def _write(self) -> int:
        line, descriptors = self._leaving[0]
        if descriptors:
            return socket.send_fds(self.end, [line], list(descriptors))
        if len(self._leaving) == 1:
            return self.end.send(line)
        plain = takewhile(lambda each: not each[1], islice(self._leaving, _AT_ONCE_MAX))
        return self.end.sendmsg([each for each, _ in plain])

    def receive(self) -> Iterator[Message]:
        """Yield the whole messages that are there; sets `at_end` when the other end is closed. Raises WireError after the last good one."""
        for _ in range(CHUNKS_MAX):
            chunk = self._read()
            if chunk is None:
                return
            if not chunk:
                self.at_end = True  # an unfinished line at the end is nobody's word
                return
            self._arrived += chunk
            yield from self._split()

    def _read(self) -> bytes | None:
        try:
            chunk, descriptors, _, _ = socket.recv_fds(self.end, CHUNK_BYTES, _DESCRIPTORS_MAX)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # recv_fds of Python 3.11 and 3.12 drops the flag that would do it
            self.descriptors.append(descriptor)
        return chunk

    def _split(self) -> Iterator[Message]:
        end = self._arrived.rfind(b"\n", self._searched)
        lines = bytes(self._arrived[:end]).split(b"\n") if end >= 0 else []
        del self._arrived[: end + 1]
        self._searched = len(self._arrived)
        for line in lines:
            self._check_length(len(line))
            yield decode(line)
        self._check_length(self._searched)

    def _check_length(self, length: int) -> None:
        if length >= self.bytes_max:
            raise WireError(f"a line of {length} bytes is over the limit of {self.bytes_max}")

    def close(self) -> None:
        """Close the socket and every descriptor that arrived and was not taken."""
        self.at_end = True
        self.end.close()
        while self.descriptors:
            with contextlib.suppress(OSError):
                os.close(self.descriptors.popleft())


# Job and Report as messages.


def job_to_wire(job: Job, enter_by_boot_us: int | None = None) -> list[Any]:
    """Return the job as plain JSON data, its fields in their order; with `enter_by_boot_us` where it may be entered no later than that."""
    data = list(_job_values(job))
    if enter_by_boot_us is not None:
        data[_ENTER_BY] = enter_by_boot_us
    return data


def job_from_wire(data: Any) -> Job:
    """Rebuild a job. Raises WireError."""
    try:
        given = dict(zip(_JOB_FIELDS, data, strict=True))
        given["kind"], given["isolation"] = Kind(given["kind"]), Isolation(given["isolation"])
        given["attempts"] = tuple((number, wall_us) for number, wall_us in given["attempts"])
        return Job(**given)
    except _NOT_OF_THAT_SHAPE as error:
        raise WireError(f"a message is not a job: {type(error).__name__}: {error}") from None


def report_to_wire(report: Report) -> Message:
    """Return the report as plain JSON data, without its job and without what is at its default: the other end knows both."""
    data = {name: value for name, value in zip(_REPORT_FIELDS, _report_values(report), strict=True) if value is not _REPORT_DEFAULTS[name]}
    if report.answer is not None:
        data["answer"] = report.answer.to_json()
    return data


def report_from_wire(data: Any, job: Job) -> Report:
    """Rebuild the report of `job`, with every field of its exact type. Raises WireError."""
    try:
        for name, value in data.items():
            if not _REPORT_FIELDS[name](value):
                raise TypeError(name)
        given = {**data, "job": job, "end": End(data["end"]), "ended": Moment(*data["ended"])}
        if "fence" in data:
            given["fence"] = FenceBasis(data["fence"])
        if "answer" in data:
            given["answer"] = ProbeResult.from_json(data["answer"])
        return Report(**given)
    except _NOT_OF_THAT_SHAPE as error:
        raise WireError(f"a message is not a report: {type(error).__name__}: {error}") from None


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in types


_NOT_OF_THAT_SHAPE: Final = (TypeError, ValueError, KeyError, AttributeError)
_JOB_FIELDS: Final = Job._fields
_job_values: Final = attrgetter(*_JOB_FIELDS)
_ENTER_BY: Final = _JOB_FIELDS.index("enter_by_boot_us")
_REPORT_FIELDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "end": lambda value: isinstance(value, str),
    "output": _is(str),
    "postcondition": _is(bool),
    "answer": _is(dict),
    "error_class": _is(str),
    "error_text": _is(str),
    "retryable": _is(bool),
    "interrupt": _is(str),
    "provider_operation_id": _is(str),
    "fence": lambda value: isinstance(value, str),
    "sending": _is(bool),
    "ended": lambda value: isinstance(value, list) and [type(part) for part in value] == [int, int, str],
    "late": _is(bool),
}
_report_values: Final = attrgetter(*_REPORT_FIELDS)
_REPORT_DEFAULTS: Final = {name: Report._field_defaults.get(name) for name in Report._fields}

__all__ = [
    "Line",
    "Message",
    "WireError",
    "decode",
    "encode",
    "job_from_wire",
    "job_to_wire",
    "line_bytes_max",
    "report_from_wire",
    "report_to_wire",
]
