"""Log events with facts as fields, one line each.

Nothing here ever raises into the caller: a handler's outcome must not depend on what it logs or on where the log goes.
Imported as a library we write nothing on our own: lines go to the host's `logging`. Only `configure_logs`, which our own
programs call, takes a stream.
"""

import functools
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, TextIO

from settled.core.errors import ConfigurationError
from settled.core.text import safe_repr
from settled.logs.bound import Bound, import_structlog, is_left_out, merge_context_variables, stamp
from settled.logs.plain import NAME_MAX, JsonValue, Redact, error_fields, plain_fields
from settled.logs.render import LINE_BYTES_MAX, Render, fit, render_console, render_json
from settled.logs.sink import Sink

LogFormat = Literal["auto", "json", "console"]
LEVELS: Final[Mapping[str, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_NAMES: Final = {number: name for name, number in LEVELS.items()}


class Output(Protocol):
    """Where events go. `write` may raise; its caller counts the line as lost."""

    level: int

    def takes(self, level: int, logger: str) -> bool: ...
    def write(self, level: int, logger: str, fields: dict[str, Any]) -> None: ...
    def count_lost(self) -> None: ...
    def lines_lost(self) -> int: ...


class HostLogging:
    """The host's `logging`, for as long as nobody called `configure_logs`."""

    level = 0

    def __init__(self) -> None:
        self._lost = 0

    def takes(self, level: int, logger: str) -> bool:
        return logging.getLogger(logger).isEnabledFor(level)

    def write(self, level: int, logger: str, fields: dict[str, Any]) -> None:
        shown = _event(level, logger, fields, None)
        pairs = [f"{name}={value}" for name, value in shown.items() if name not in ("time", "level", "event", "logger")]
        logging.getLogger(logger).log(level, "%s", " ".join([str(shown["event"]), *pairs]))

    def count_lost(self) -> None:
        self._lost += 1

    def lines_lost(self) -> int:
        return self._lost


class Lines:
    """One line per event on a stream of our own."""

    def __init__(self, sink: Sink, render: Render, level: int, redact: Redact | None) -> None:
        self._sink, self._render, self._redact = sink, render, redact
        self.level = level

    def takes(self, level: int, logger: str) -> bool:
        return level >= self.level

    def write(self, level: int, logger: str, fields: dict[str, Any]) -> None:
        shown = _event(level, logger, fields, self._redact)

        def report(lost: int) -> str:
            head: dict[str, JsonValue] = {"time": shown["time"], "level": "warning", "event": "log.lines_lost", "logger": "settled.logs"}
            return self._render({**head, "count": lost, "lost_in_all": self._sink.lost})

        self._sink.send(fit(self._render, shown, LINE_BYTES_MAX), report)

    def count_lost(self) -> None:
        self._sink.count_lost()

    def lines_lost(self) -> int:
        return self._sink.lost


class Log(Bound):
    """A logger with bound fields: `log.info("operation.quarantined", operation_id=…, reason=…)`. No call of it raises an Exception."""

    def debug(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(10, event, args, fields)

    def info(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(20, event, args, fields)

    def warning(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(30, event, args, fields)

    def error(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(40, event, args, fields)

    def critical(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(50, event, args, fields)

    def exception(self, event: object, /, *args: object, **fields: object) -> None:
        """Log at error, with the class, message and places of the error being handled."""
        self._say(40, event, args, {"exc_info": True, **fields})

    def log(self, level: int, event: object, /, *args: object, **fields: object) -> None:
        self._say(level, event, args, fields)

    # Other names that structlog's own loggers have: a handler written for them must not fail here.
    msg, warn, err, fatal = info, warning, error, critical

    async def adebug(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(10, event, args, fields)

    async def ainfo(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(20, event, args, fields)

    async def awarning(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(30, event, args, fields)

    async def aerror(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(40, event, args, fields)

    async def aexception(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(40, event, args, {"exc_info": True, **fields})

    async def acritical(self, event: object, /, *args: object, **fields: object) -> None:
        self._say(50, event, args, fields)

    def takes(self, level: int) -> bool:
        """Whether a line of this level would be written: ask before fields are gathered on a hot path."""
        return _output.takes(level, str(self._logger))

    def _say(self, level: object, event: object, args: tuple[object, ...], fields: dict[str, Any]) -> None:
        output = _output
        try:
            number = level if isinstance(level, int) else 20
            logger = str(self._logger)
            if not output.takes(number, logger):
                return
            output.write(number, logger, self._processed(_NAMES.get(number, "info"), _formatted(event, args), fields))
        except Exception:  # noqa: BLE001 - the work that logs is worth more than its line
            output.count_lost()
        except BaseException as error:
            if not is_left_out(error):
                raise


def get_log(name: str, **fields: object) -> Log:
    """Return the logger of this name with `fields` bound. It follows later calls of `configure_logs`."""
    return Log(name, _PROCESSORS, dict(fields))


def configure_logs(
    format: LogFormat = "auto",
    level: str = "info",
    stream: TextIO | None = None,
    *,
    redact: Redact | None = None,
) -> None:
    """Send events to `stream` (default: standard output): JSON, or for people where it is a terminal and the format is "auto".

    For our own programs only: it also takes over structlog and, from warnings up, the standard library's `logging`, so that what
    handlers and other libraries say comes out as lines of the same form. Raises ConfigurationError for an unknown format or level.
    """
    if format not in ("auto", "json", "console"):
        raise ConfigurationError(f"logs.format is {format!r}, but must be auto, json or console. Nothing was started.")
    if level not in LEVELS:
        raise ConfigurationError(f"logs.level is {level!r}, but must be one of {', '.join(LEVELS)}. Nothing was started.")
    stream = stream if stream is not None else sys.stdout  # None where the process was started with it closed
    terminal = _is_terminal(stream)
    render: Render = render_json
    if format == "console" or (format == "auto" and terminal):
        render = functools.partial(render_console, colors=terminal and not os.environ.get("NO_COLOR"))
    global _output
    _output = Lines(Sink(stream), render, LEVELS[level], redact)
    import_structlog().configure(
        processors=list(_PROCESSORS),
        wrapper_class=Log,
        context_class=dict,
        logger_factory=_structlog_name,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, _Bridge)] + [_Bridge(logging.WARNING)]


def lines_lost() -> int:
    """Return how many lines could not be written since the logs were configured."""
    return _output.lines_lost()


class _Bridge(logging.Handler):
    """Take records of the standard library's `logging` as events."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        get_log(record.name).log(record.levelno, "log.message", text=_formatted(record.msg, _record_args(record)), exc_info=error)


def _record_args(record: logging.LogRecord) -> tuple[object, ...]:
    return record.args if isinstance(record.args, tuple) else (record.args,) if record.args else ()


def _formatted(event: object, args: tuple[object, ...]) -> str:
    text = event if isinstance(event, str) else safe_repr(event)
    if not args:
        return text
    try:
        return text % (args[0] if len(args) == 1 and isinstance(args[0], Mapping) else args)
    except Exception:  # noqa: BLE001 - the wrong number of values, or one that cannot be shown: the text alone still says something
        return text


def _event(level: int, logger: str, fields: dict[str, Any], redact: Redact | None) -> dict[str, JsonValue]:
    error = _error_of(fields.pop("exc_info", None))
    time, event = fields.pop("time"), fields.pop("event")
    head = {"time": time, "level": _NAMES.get(level, str(level)), "event": event, "logger": logger[:NAME_MAX]}
    details = error_fields(error) if error is not None else {}
    shown = plain_fields({**head, **{name: value for name, value in fields.items() if name not in head}, **details}, redact)
    shown["event"] = str(shown["event"])[: 2 * NAME_MAX]
    return shown


def _error_of(exc_info: object) -> BaseException | None:
    if isinstance(exc_info, tuple) and len(exc_info) == 3:
        exc_info = exc_info[1]
    if isinstance(exc_info, BaseException):
        return exc_info
    return sys.exc_info()[1] if exc_info else None


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (ValueError, OSError, AttributeError):  # closed, or not quite a stream
        return False


def _structlog_name(*args: object) -> str:
    return str(args[0]) if args else "structlog"


_PROCESSORS: Final = (merge_context_variables, stamp)
_output: Output = HostLogging()
