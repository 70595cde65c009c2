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
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from settled.core.evidence import ProbeResult
from settled.core.moment import Moment
from settled.core.words import FenceBasis, Isolation
from settled.execution.job import End, Job, Kind, Report

Message = dict[str, Any]

CHUNK_BYTES: Final = 262_144
CHUNKS_MAX: Final = 64  # at one call, so that one end that never stops talking does not keep its reader from all others
SLACK_BYTES: Final = 1_048_576  # identities, error text, probe evidence and the braces around a body
_DESCRIPTORS_MAX: Final = 4


class WireError(Exception):
    """What arrived cannot be a message: too long, not JSON, or of another shape."""


def line_bytes_max(body_bytes_max: int) -> int:
    """Return the limit of a line that carries a canonical text of `body_bytes_max` bytes.

    Twice the body: it travels as a JSON string, in which every quote and backslash gains one more byte.
    """
    return 2 * body_bytes_max + SLACK_BYTES


def encode(message: Mapping[str, Any], bytes_max: int) -> bytes:
    """Return the message as one line. Raises WireError if it is over the limit."""
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    line = text.encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate becomes its JSON escape
    if len(line) > bytes_max:
        raise WireError(f"a message of {len(line)} bytes is over the limit of {bytes_max}")
    return line


def decode(line: bytes) -> Message:
    """Return the message of one line. Raises WireError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a line of {len(line)} bytes is not JSON: {type(error).__name__}") from None
    if type(message) is not dict:
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
        line = encode(message, self.bytes_max)
        if self._leaving_bytes + len(line) > 2 * self.bytes_max:
            raise WireError("the other end has stopped reading")
        self._leaving.append((line, descriptors))
        self._leaving_bytes += len(line)
        self.push()

    def push(self) -> None:
        """Write what can be written now."""
        while self._leaving and not self.at_end:
            line, descriptors = self._leaving[0]
            try:
                sent = socket.send_fds(self.end, [line], list(descriptors)) if descriptors else self.end.send(line)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.at_end = True
                break
            self._leaving_bytes -= sent
            if sent == len(line):
                self._leaving.popleft()
            else:
                self._leaving[0] = (line[sent:], ())  # the descriptors went with the first byte
        if self.at_end:
            self._leaving.clear()
            self._leaving_bytes = 0

    def receive(self) -> list[Message]:
        """Return the whole messages that are there; sets `at_end` when the other end is closed. Raises WireError."""
        messages: list[Message] = []
        for _ in range(CHUNKS_MAX):
            chunk = self._read()
            if chunk is None:
                return messages
            if not chunk:
                self.at_end = True  # an unfinished line at the end is nobody's word
                return messages
            self._arrived += chunk
            messages += self._split()
        return messages

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

    def _split(self) -> list[Message]:
        messages = []
        while (found := self._arrived.find(b"\n", self._searched)) >= 0:
            line = bytes(self._arrived[:found])
            del self._arrived[: found + 1]
            self._searched = 0
            if len(line) >= self.bytes_max:
                raise WireError(f"a line of {len(line)} bytes is over the limit of {self.bytes_max}")
            messages.append(decode(line))
        self._searched = len(self._arrived)
        if self._searched >= self.bytes_max:
            raise WireError(f"a line is over the limit of {self.bytes_max} bytes")
        return messages

    def close(self) -> None:
        """Close the socket and every descriptor that arrived and was not taken."""
        self.at_end = True
        self.end.close()
        while self.descriptors:
            with contextlib.suppress(OSError):
                os.close(self.descriptors.popleft())


# Job and Report as messages.


def job_to_wire(job: Job) -> Message:
    """Return the job as plain JSON data."""
    return {name: getattr(job, name) for name in _JOB_FIELDS}


def job_from_wire(data: Any) -> Job:
    """Rebuild a job. Raises WireError."""
    with _refusing("a job"):
        return Job(
            **{
                **data,
                "kind": Kind(data["kind"]),
                "isolation": Isolation(data["isolation"]),
                "attempts": tuple((number, wall_us) for number, wall_us in data["attempts"]),
            }
        )


def report_to_wire(report: Report) -> Message:
    """Return the report as plain JSON data, without its job: the other end knows what it asked."""
    data = {name: getattr(report, name) for name in _REPORT_FIELDS if getattr(report, name) is not None}
    if report.answer is not None:
        data["answer"] = report.answer.to_json()
    return data


def report_from_wire(data: Any, job: Job) -> Report:
    """Rebuild the report of `job`, with every field of its exact type. Raises WireError."""
    with _refusing("a report"):
        for name, value in data.items():
            if not _REPORT_FIELDS[name](value):
                raise TypeError(name)
        return Report(
            job=job,
            **{
                **data,
                "end": End(data["end"]),
                "fence": FenceBasis(data["fence"]) if "fence" in data else None,
                "answer": ProbeResult.from_json(data["answer"]) if "answer" in data else None,
                "ended": Moment(*data["ended"]),
            },
        )


@contextlib.contextmanager
def _refusing(what: str) -> Any:
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise WireError(f"a message is not {what}: {type(error).__name__}: {error}") from None


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in types


_JOB_FIELDS: Final = tuple(field.name for field in fields(Job))
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
