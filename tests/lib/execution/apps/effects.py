"""An app of small handlers for the tests of process isolation. Each does what its name says; arguments carry paths and times."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from settled.core.errors import EffectRejected, NeedsReview, NotSent
from settled.core.evidence import ProbeResult

LATE_WRITER = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if sys.argv[2] == "escape":
    os.setsid()
open(sys.argv[1] + ".pid", "w").write(str(os.getpid()))
time.sleep(float(sys.argv[3]))
open(sys.argv[1], "w").write("too late")
"""


def start_late_writer(path: str, how: str = "stay", seconds: float = 60.0, **options: Any) -> subprocess.Popen[bytes]:
    """Start a child that ignores TERM and writes `path` after `seconds`; return once it has begun."""
    child = subprocess.Popen([sys.executable, "-c", LATE_WRITER, path, how, str(seconds)], **options)
    pid_file = Path(path + ".pid")
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.005)
    return child


class TwoArguments(Exception):
    def __init__(self, code: int, detail: str) -> None:
        super().__init__(code, detail)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ERRORS: dict[str, Any] = {
    "ValueError": lambda: ValueError("no\nnewline"),
    "SystemExit": lambda: SystemExit(0),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "TwoArguments": lambda: TwoArguments(7, "two"),
    "Unpicklable": Unpicklable,
    "Speechless": Speechless,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("some", [SystemExit(0), ValueError("x")]),
    "EffectRejected": lambda: EffectRejected("declined"),
    "NotSent": lambda: NotSent("dns"),
    "NeedsReview": lambda: NeedsReview("look"),
}


def echo(arguments: dict[str, Any], ctx: Any) -> Any:
    return {"pid": os.getpid(), "given": arguments.get("given")}


def repeat(arguments: dict[str, Any], ctx: Any) -> Any:
    return "x" * arguments["bytes"]


def chatter(arguments: dict[str, Any], ctx: Any) -> Any:
    print('{"ready": true}')
    print('{"key": ["handler", 1, 1], "report": {"end": "returned"}}', flush=True)
    sys.stderr.write('{"event": "gone", "runner": 1}\n')
    os.write(1, b"raw\n")
    subprocess.run(["echo", "from a child"], check=True)
    return "said"


def raise_error(arguments: dict[str, Any], ctx: Any) -> Any:
    raise ERRORS[arguments["error"]]()


def leave_and_raise(arguments: dict[str, Any], ctx: Any) -> Any:
    """Raise with a child in the group, an escaped one, and a thread still at work."""
    start_late_writer(arguments["path"])
    start_late_writer(arguments["path"] + ".escaped", "escape", env={} if arguments.get("clear") else None)
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    raise ValueError("after starting others")


def hang(arguments: dict[str, Any], ctx: Any) -> Any:
    """Ignore TERM, start a child that ignores it too, and one that escapes the group; then sleep."""
    if arguments.get("ignore", True):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "path" in arguments:
        start_late_writer(arguments["path"])
        start_late_writer(arguments["path"] + ".escaped", "escape", env={} if arguments.get("clear") else None)
    Path(arguments["entered"]).write_text(str(os.getpid()))
    time.sleep(arguments.get("seconds", 60))
    return "ended by itself"


def hold_interpreter(arguments: dict[str, Any], ctx: Any) -> Any:
    """Sleep in C without giving up the interpreter lock."""
    Path(arguments["entered"]).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(60)


def finish_on_term(arguments: dict[str, Any], ctx: Any) -> Any:
    """Return a result when TERM comes, within the grace."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    while not told.is_set():
        time.sleep(0.01)
    return "finished in the grace"


def report_and_hang(arguments: dict[str, Any], ctx: Any) -> Any:
    ctx.report(provider_operation_id="ch_1")
    if arguments.get("sending"):
        ctx.sending()
    Path(arguments["entered"]).write_text(str(os.getpid()))
    time.sleep(60)


def exit_hard(arguments: dict[str, Any], ctx: Any) -> Any:
    os._exit(arguments.get("status", 0))


def segfault(arguments: dict[str, Any], ctx: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def kill_parent(arguments: dict[str, Any], ctx: Any) -> Any:
    start_late_writer(arguments["path"])
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def fork_and_come_back(arguments: dict[str, Any], ctx: Any) -> Any:
    child = os.fork()
    if child == 0:
        return "I am the child"
    os.waitpid(child, 0)
    return "I am the parent"


def forge_line(arguments: dict[str, Any], ctx: Any) -> Any:
    """Write garbage into every socket this process holds."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"x" * arguments["bytes"] + b"\n")
        except OSError:
            continue
    return "returned"


def return_set(arguments: dict[str, Any], ctx: Any) -> Any:
    return {1, 2}


def orphan_and_return(arguments: dict[str, Any], ctx: Any) -> Any:
    """Leave an orphan that ends at once, for the supervisor to reap."""
    subprocess.run(["sh", "-c", "(sleep 0.01 &)"], check=True)
    return "left an orphan"


def environment(arguments: dict[str, Any], ctx: Any) -> Any:
    return {
        "incarnation": os.environ.get("SETTLED_INCARNATION"),
        "is_leader": os.getpgrp() == os.getpid() == os.getsid(0),
        "first_on_path": sys.path[0],
        "cwd": os.getcwd(),
        "signals": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and not signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "stdin": os.read(0, 10).decode(),
        "descriptors": sorted(
            os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
        ),
    }


async def sleep_async(arguments: dict[str, Any], ctx: Any) -> Any:
    await asyncio.sleep(0.01)
    return "awaited"


def probe_committed(arguments: dict[str, Any], ctx: Any) -> Any:
    return ProbeResult.committed(reference="r1", provider_operation_id="p1", output={"id": 1}, evidence={"seen": "ü\u2028"})


def probe_odd(arguments: dict[str, Any], ctx: Any) -> Any:
    return "committed"


class Contract:
    is_async = False

    def __init__(self, name: str, function: Any) -> None:
        self.name, self._function = name, function
        self.has_probe = name.startswith("probe_")
        self.has_postcondition = name == "checked"

    def call_handler(self, arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any:
        return self._function(arguments, ctx)

    def call_probe(self, arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any:
        return self._function(arguments, ctx)

    def call_postcondition(self, arguments: dict[str, Any], output: Any) -> Any:
        return arguments["accept"]


class App:
    def contract(self, name: str) -> Contract:
        return Contract(name, echo if name == "checked" else globals()[name])


app = App()
