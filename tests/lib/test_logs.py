"""Logs: one event, one line, and nothing that happens to a line reaches the work."""

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from settled import logs
from settled.core.errors import ConfigurationError
from settled.core.text import make_redactor
from settled.logs import configure_logs, get_log, lines_lost
from settled.logs.render import LINE_BYTES_MAX
from settled.logs.sink import Sink

ROOT = Path(__file__).parents[2]
Read = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def read() -> Read:
    stream = io.StringIO()
    configure_logs("json", "debug", stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


_children: "list[subprocess.Popen[bytes]]" = []


def run_child(code: str, **options: Any) -> "subprocess.Popen[bytes]":
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'lib'}:{ROOT / 'worker'}"}
    environ.pop("PYTHONUNBUFFERED", None)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    _children.append(subprocess.Popen([sys.executable, "-c", code], env=environ, start_new_session=True, **streams))
    return _children[-1]


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    yield
    while _children:
        child = _children.pop()
        with contextlib.suppress(ProcessLookupError):  # the group, also where only a grandchild is left of it
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


# One event, one line


def test_an_event_is_one_json_line_with_a_fixed_head_and_the_facts_as_fields(read: Read) -> None:
    get_log("settled.steps", operation_id="invoice:1").info("operation.quarantined", attempt=2, reason="conflicting_evidence")
    (line,) = read()
    assert list(line)[:4] == ["time", "level", "event", "logger"]
    assert line["time"].endswith("Z")
    del line["time"]
    assert line == {
        "level": "info",
        "event": "operation.quarantined",
        "logger": "settled.steps",
        "operation_id": "invoice:1",
        "attempt": 2,
        "reason": "conflicting_evidence",
    }


def test_a_logger_made_before_the_logs_were_configured_follows_them(read: Read) -> None:
    log = get_log("settled.early")
    other = io.StringIO()
    configure_logs("console", "info", other)
    log.info("worker.started", slots=32, note="two words")
    log.debug("not.shown")
    assert read() == []
    assert other.getvalue().count("\n") == 1
    assert 'worker.started slots=32 note="two words"' in other.getvalue()


def test_people_get_text_on_a_terminal_and_programs_get_json_elsewhere() -> None:
    code = "from settled.logs import *; configure_logs('auto', 'info'); get_log('a').info('worker.started', slots=3)"
    piped = run_child(code)
    assert json.loads(piped.communicate(timeout=30)[0])["slots"] == 3
    ours, theirs = os.openpty()
    try:
        assert run_child(code, stdout=theirs).wait(timeout=30) == 0
        shown = os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "worker.started slots=3" in shown
    assert "{" not in shown


@pytest.mark.parametrize(("format", "level"), [("xml", "info"), ("json", "loud")])
def test_an_unknown_format_or_level_is_refused(format: Any, level: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{format if format == 'xml' else level}"):
        configure_logs(format, level, io.StringIO())


def test_an_unconfigured_library_leaves_its_lines_to_the_host(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    logs._output = logs.HostLogging()
    with caplog.at_level(logging.INFO, logger="settled"):
        get_log("settled.app").info("operation.unknown", operation_id="a\nb")
        get_log("settled.app").debug("not.shown")
    assert [record.getMessage() for record in caplog.records] == ["operation.unknown operation_id=a b"]
    assert capsys.readouterr() == ("", "")


def test_what_other_libraries_say_comes_out_in_the_same_form(read: Read) -> None:
    logging.getLogger("a.library").warning("lost %s\nof %d", "one", 2)
    logging.getLogger("a.library").info("chatter, which may hold addresses with keys in them")
    structlog.get_logger("a.handler").bind(invoice=1).info("sent")
    first, second = read()
    assert (first["logger"], first["level"], first["text"]) == ("a.library", "warning", "lost one of 2")
    assert (second["logger"], second["event"], second["invoice"]) == ("a.handler", "sent", 1)


def test_what_a_program_binds_by_structlogs_context_variables_is_on_every_line(read: Read) -> None:
    with structlog.contextvars.bound_contextvars(request="r-1"):
        get_log("settled.app", slots=3).bind(more=1).unbind("slots").info("inside")
    get_log("settled.app", slots=3).try_unbind("slots", "none").new(only=1).info("outside")
    inside, outside = read()
    assert (inside["request"], inside["more"], "slots" in inside) == ("r-1", 1, False)
    assert (outside["only"], "request" in outside, "slots" in outside) == (1, False, False)
    with pytest.raises(KeyError):
        get_log("settled.app").unbind("none")


LOADED = "print([name for name in ('structlog', 'rich') if name in sys.modules])"
IMPORTS = {
    "a program that submits": ("import settled.app, settled.opening, settled.steps.submit, settled.steps.show", []),
    "a runner": ("import settled.execution.runner", []),
    "a host that executes": ("import settled.inline", []),
    "a worker": ("import settled_worker.main; from settled.logs import configure_logs; configure_logs()", ["structlog"]),
    "a host that uses structlog's console": (
        "import structlog; from settled.logs import configure_logs; configure_logs()",
        ["structlog", "rich"],
    ),
}


@pytest.mark.parametrize("program", IMPORTS)
def test_nothing_is_imported_for_lines_that_nobody_writes(program: str) -> None:
    imports, expected = IMPORTS[program]
    child = run_child(f"import sys\n{imports}\n{LOADED}\nimport rich.console")
    out, said = child.communicate(timeout=30)
    assert (child.returncode, out.decode().strip()) == (0, str(expected)), said.decode()


# Fields that cannot be shown


class Hostile:
    def __repr__(self) -> str:
        raise SystemExit(3)

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class either")


class Endless(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("not these")


def circular() -> dict[str, Any]:
    one: dict[str, Any] = {"deep": []}
    one["deep"].append(one)
    return one


def nested(depth: int) -> list[Any]:
    return [] if depth == 0 else [nested(depth - 1)]


UNSHOWABLE: dict[str, Callable[[], Any]] = {
    "object": object,
    "bytes": lambda: b"\xff\x00",
    "set": lambda: {3, "a", (1, 2)},
    "circular": circular,
    "repr raises": Hostile,
    "items raise": lambda: Endless(a=1),
    "5 MB": lambda: "x" * 5_000_000,
    "wide": lambda: {str(number): list(range(1000)) for number in range(1000)},
    "deep": lambda: nested(500),
    "integer without an end": lambda: 10**6000,
    "not a number": lambda: float("nan"),
    "surrogate": lambda: "\ud800",
    "keys": lambda: {1: 1, None: 2, b"k": 3, "\x1b": 4},
    "error": lambda: ValueError("a\nb"),
    "class": lambda: Hostile,
    "4 KB of others' letters": lambda: "支" * 4000,
}


@pytest.mark.parametrize("name", UNSHOWABLE)
def test_a_field_that_cannot_be_shown_gives_one_valid_line_with_a_stand_in(read: Read, name: str) -> None:
    get_log("settled.handler").info("handler.says", field=UNSHOWABLE[name](), after=1)
    (line,) = read()
    assert (line["event"], line["after"]) == ("handler.says", 1)
    assert line["field"] is not None
    assert len(json.dumps(line)) <= LINE_BYTES_MAX + 100
    assert lines_lost() == 0


def test_a_hundred_large_fields_are_left_out_and_the_line_says_so(read: Read) -> None:
    get_log("settled.handler").info("handler.says", **{f"field_{number}": "é" * 1000 for number in range(100)})
    (line,) = read()
    assert line["event"] == "handler.says"
    assert line["left_out"].startswith("field_")
    assert line["left_out_count"] > 0
    assert len(json.dumps(line, separators=(",", ":"))) < LINE_BYTES_MAX


@pytest.mark.promise("S129")
def test_control_sequences_and_direction_marks_are_escaped_in_every_format() -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\nforged \u202e row\x9b"
    for format in ("json", "console"):
        stream = io.StringIO()
        configure_logs(format, "info", stream)  # type: ignore[arg-type]
        get_log(hostile).bind(**{hostile: hostile}).info(hostile, nested={hostile: [hostile]}, error=ValueError(hostile))
        shown = stream.getvalue()
        assert shown.count("\n") == 1
        said = json.dumps(json.loads(shown), ensure_ascii=False) if format == "json" else shown
        assert not set(said[:-1]) & set("\x1b\x07\n\u202e\x9b")


@pytest.mark.promise("S129")
def test_a_megabyte_of_error_text_is_cut(read: Read) -> None:
    try:
        raise ValueError("\x1b" * 1_000_000)
    except ValueError:
        get_log("settled.handler").exception("handler.raised")
    (line,) = read()
    assert line["error_class"] == "ValueError"
    assert len(line["error_text"]) <= 1000
    assert line["error_text"].endswith("…")


def test_an_error_is_told_with_its_places_but_without_its_variables(read: Read) -> None:
    try:
        headers = {"Authorization": "Bearer hunter2"}
        raise KeyError(len(headers))
    except KeyError:
        get_log("settled.handler").exception("handler.raised")
    (line,) = read()
    assert "test_logs.py" in line["error_places"][-1]
    assert "hunter2" not in json.dumps(line)


def test_redactions_are_applied_before_anything_is_cut() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream, redact=make_redactor([re.compile(r"sk_\w+")]))
    secret = "sk_" + "a" * 900
    get_log("settled.handler").info(f"said {secret}", text="x" * 500 + " " + secret, nested=[{"k": secret}], error=ValueError(secret))
    assert "sk_" not in stream.getvalue()
    assert "***" in stream.getvalue()


def test_no_way_of_calling_a_logger_raises(read: Read) -> None:
    log = get_log("settled.handler")
    log.info("%s and %s", "one")  # noqa: PLE1206 - the mistake is the point
    log.info("%d", object())
    log.info(Hostile())
    log.info("an.event", event="another", level="critical", time=None, logger=3, self=1)
    log.warn("structlog's %s", "names")
    log.log("loud", "what")  # type: ignore[arg-type]
    log.exception("without an error")
    asyncio.run(log.ainfo("awaited"))
    lines = read()
    assert len(lines) == 8
    assert (lines[3]["event"], lines[3]["level"], lines[3]["logger"]) == ("an.event", "info", "settled.handler")


# Streams that break


def test_a_line_that_a_processor_leaves_out_stops_nobody() -> None:
    """structlog says so with a BaseException: it would end the thread that only wanted to log."""

    def leave_out(logger: Any, name: str, fields: Any) -> Any:
        raise structlog.DropEvent

    stream = io.StringIO()
    configure_logs("json", "debug", stream)
    lost = lines_lost()
    logs.Log("x", [leave_out], {}).error("not.shown")
    assert (stream.getvalue(), lines_lost()) == ("", lost)


def test_a_line_is_there_after_a_kill_at_once() -> None:
    child = run_child(
        "import sys, signal; from settled.logs import *; configure_logs('json', 'info', sys.stdout)\n"
        "get_log('a').info('worker.started'); sys.stderr.write('x'); sys.stderr.flush(); signal.pause()"
    )
    assert child.stderr and child.stderr.read(1) == b"x"
    child.send_signal(signal.SIGKILL)
    out, _ = child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL
    assert json.loads(out)["event"] == "worker.started"


WORK = """
import os, sys
from settled.logs import configure_logs, get_log, lines_lost
configure_logs("json", "info", sys.stdout)
log = get_log("a")
{before}
for number in range(3):
    log.info("an.event", number=number)
{after}
sys.stderr.write(f"worked, lost {{lines_lost()}}")
sys.stderr.flush()
os._exit(0)
"""


@pytest.mark.parametrize("breaks", ["sys.stdout.close()", "os.close(1)", "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"])
def test_a_stream_that_breaks_costs_its_lines_and_not_the_work(breaks: str) -> None:
    child = run_child(WORK.format(before=breaks, after=""))
    _, said = child.communicate(timeout=30)
    assert (child.returncode, said) == (0, b"worked, lost 3")


def test_a_reader_that_went_away_costs_the_lines_and_not_the_work() -> None:
    child = run_child(WORK.format(before="sys.stdin.readline()", after=""), stdin=subprocess.PIPE)
    assert child.stdout and child.stdin and child.stderr
    child.stdout.close()
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert child.stderr.read() == b"worked, lost 3"
    assert child.wait(timeout=30) == 0
    child.stdin.close()
    child.stderr.close()


def test_a_process_started_without_standard_output_works() -> None:
    child = run_child(WORK.format(before="", after=""), stdout=None, preexec_fn=lambda: os.close(1))
    _, said = child.communicate(timeout=30)
    assert (child.returncode, said) == (0, b"worked, lost 3")


def test_logging_recovers_with_the_stream_and_says_how_many_lines_were_lost() -> None:
    before = "kept = os.dup(1); os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    child = run_child(WORK.format(before=before, after="os.dup2(kept, 1); log.info('again')"))
    out, said = child.communicate(timeout=30)
    first, second = [json.loads(line) for line in out.splitlines()]
    assert (first["event"], first["level"], first["count"]) == ("log.lines_lost", "warning", 3)
    assert second["event"] == "again"
    assert said == b"worked, lost 3"


def test_a_full_pipe_that_nobody_reads_does_not_stop_the_work_and_its_lines_stay_whole() -> None:
    after = "for number in range(500): log.info('many', text='x' * 900)\n"
    child = run_child(WORK.format(before="", after=after))
    assert child.stderr and child.stdout
    assert select.select([child.stderr], [], [], 60)[0], "the work stood still"
    said = child.stderr.read().decode()
    assert said.startswith("worked, lost ")
    lines = [json.loads(line) for line in child.stdout.read().splitlines()]
    lost = int(said.removeprefix("worked, lost "))
    assert 0 < lost < 500
    assert len(lines) == 503 - lost
    assert child.wait(timeout=30) == 0
    child.stdout.close()
    child.stderr.close()


class Breaks(io.StringIO):
    broken = True

    def write(self, text: str) -> int:
        if self.broken:
            raise RuntimeError("not an OSError either")
        return super().write(text)


def test_whatever_a_stream_raises_is_counted() -> None:
    stream = Breaks()
    sink = Sink(stream)
    assert not sink.send("one", str)
    assert not sink.send("two", str)
    stream.broken = False
    assert sink.send("three", lambda lost: f"lost {lost}")
    assert sink.send("four", str)
    assert stream.getvalue() == "lost 2\nthree\nfour\n"
    assert sink.lost == 2


def test_a_fork_while_another_thread_logs_leaves_the_child_able_to_log() -> None:
    code = (
        "import os, sys, threading; from settled.logs import *; configure_logs('json', 'info', sys.stdout)\n"
        "import settled.logs as logs; sink = logs._output._sink; held, go = threading.Event(), threading.Event()\n"
        "def hold():\n    with sink._lock: held.set(); go.wait()\n"
        "threading.Thread(target=hold, daemon=True).start(); held.wait()\n"
        "if (pid := os.fork()) == 0: get_log('a').info('from.the.child'); os._exit(0)\n"
        "os.waitpid(pid, 0); go.set()"
    )
    child = run_child(code)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (0, b"")
    assert json.loads(out)["event"] == "from.the.child"
