"""Effects for the worker's tests: charges at the demo's shop, and handlers that hang, hide or kill.

Handlers leave marks (files in the folder MARKS) when they are entered, so that a test can act at an exact point, and wait for
marks of the test. The worker imports this file as effects:app; tests call `declare` on an App of their own.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from settled import App, EffectContract, ProbeResult
from settled.core.words import Isolation
from settled_cli.demo import client

app = App()
WAIT_SECONDS = 60.0


def marks() -> Path:
    return Path(os.environ["MARKS"])


def mark(name: str, text: str = "") -> None:
    """Leave a mark, whole or not at all."""
    made = marks() / f".{name}.{os.getpid()}"
    made.write_text(text)
    made.rename(marks() / name)


def wait_for_mark(name: str, seconds: float = WAIT_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not (marks() / name).exists():
        if time.monotonic() > until:
            raise TimeoutError(name)
        time.sleep(0.005)


def add_line(name: str, line: str) -> None:
    """Append a line in one write, which no other process can tear."""
    opened = os.open(marks() / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(opened, line.encode() + b"\n")
    os.close(opened)


def charge(arguments: dict[str, Any]) -> dict[str, Any]:
    """Charge at the shop; with `hold` wait before or after it, for a mark or for the end."""
    reference, hold = arguments["reference"], arguments.get("hold")
    add_line("calls", reference)
    mark(f"entered-{reference}", str(os.getpid()))
    if hold in ("forked", "execd", "hidden") and not (marks() / f"grandchild-{reference}").exists():
        leave_grandchild(hold, reference)  # it charges in our place
        wait_for_mark(f"go-{reference}")
    if hold == "before":
        wait_for_mark(f"go-{reference}")
    time.sleep(arguments.get("pause", 0.0))
    answer = client.charge(os.environ["SHOP"], reference=reference, amount_cents=4200, currency="usd")
    if hold == "after":
        wait_for_mark(f"go-{reference}")
    if hold == "exit":
        os._exit(73)
    return answer


def leave_grandchild(kind: str, reference: str) -> None:
    """Leave one in a session of its own: forked, exec'd, or exec'd without our environment."""
    if kind == "forked":
        if os.fork() == 0:
            os.setsid()
            try:
                charge_when_woken(reference)
            finally:
                os._exit(0)
        return
    bare = {name: os.environ[name] for name in ("PYTHONPATH", "SHOP", "MARKS")}
    subprocess.Popen([sys.executable, __file__, reference], start_new_session=True, env=bare if kind == "hidden" else None)


def charge_when_woken(reference: str) -> None:
    """Be the grandchild."""
    mark(f"grandchild-{reference}", str(os.getpid()))
    wait_for_mark(f"wake-{reference}")
    client.charge(os.environ["SHOP"], reference=reference, amount_cents=4200, currency="usd")


async def acharge(arguments: dict[str, Any]) -> dict[str, Any]:
    return charge(arguments)


async def afind(arguments: dict[str, Any]) -> ProbeResult:
    return find(arguments)


def announce(arguments: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Announce, then charge; a first attempt waits before or after the announcement, and says if it was refused."""
    reference = arguments["reference"]
    add_line("calls", reference)
    if ctx.attempt == 1 and arguments["wait"] == "before":
        mark(f"entered-{reference}", str(os.getpid()))
        wait_for_mark(f"go-{reference}")
    try:
        ctx.sending()
    except BaseException as error:
        mark(f"refused-{reference}", type(error).__name__)
        raise
    if ctx.attempt == 1 and arguments["wait"] == "after":
        mark(f"entered-{reference}", str(os.getpid()))
        wait_for_mark(f"go-{reference}")
    return client.charge(os.environ["SHOP"], reference=reference, amount_cents=4200, currency="usd")


def stubborn(arguments: dict[str, Any]) -> list[int]:
    """The first call ignores TERM, leaves two children that do likewise, and never ends; the next one says who of them is alive."""
    reference = arguments["reference"]
    add_line("calls", reference)
    told = marks() / f"family-{reference}"
    if told.exists():
        return [pid for pid in map(int, told.read_text().split()) if Path(f"/proc/{pid}").exists()]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    late = f"import signal, sys, time; signal.signal(15, signal.SIG_IGN); time.sleep(12); open({str(marks() / f'late-{reference}')!r}, 'a')"
    children = [subprocess.Popen([sys.executable, "-c", late], start_new_session=apart) for apart in (False, True)]
    mark(f"family-{reference}", " ".join(str(pid) for pid in (os.getpid(), *(child.pid for child in children))))
    time.sleep(WAIT_SECONDS)
    return []


def find(arguments: dict[str, Any]) -> ProbeResult:
    """Ask the shop. It is complete and knows what is pending, so that its absence is terminal."""
    reference = arguments["reference"]
    add_line("probes", reference)
    if arguments.get("hang_probe"):
        mark(f"probing-{reference}", str(os.getpid()))
        wait_for_mark("never")
    shown = client.find(os.environ["SHOP"], reference)
    if shown["charges"]:
        found = shown["charges"][0]
        return ProbeResult.committed(reference=reference, provider_operation_id=found["charge_id"], output=found)
    return ProbeResult.not_committed(healthy=True, terminal=not shown["pending"] and shown["complete"], reference=reference)


def lose(arguments: dict[str, Any]) -> None:
    """Charge, and lose the answer."""
    charge(arguments)
    raise ConnectionResetError("the answer was lost")


def append(arguments: dict[str, Any]) -> None:
    """An instant effect: one line in a file. With `kills` it ends the worker of that pid first, and waits for its death."""
    add_line("lines", arguments["reference"])
    if "kills" in arguments:
        os.kill(arguments["kills"], signal.SIGKILL)
        while Path(f"/proc/{arguments['kills']}/stat").exists():  # until the test has reaped it
            time.sleep(0.005)


def nap(arguments: dict[str, Any]) -> str:
    mark(f"entered-{arguments['reference']}", str(os.getpid()))
    wait_for_mark(f"go-{arguments['reference']}", arguments.get("seconds", WAIT_SECONDS))
    return "rested"


async def anap(arguments: dict[str, Any]) -> str:
    mark(f"entered-{arguments['reference']}")
    until = time.monotonic() + WAIT_SECONDS
    while not (marks() / f"go-{arguments['reference']}").exists() and time.monotonic() < until:  # noqa: ASYNC110 - the mark is a file
        await asyncio.sleep(0.005)
    return "rested"


def poison(arguments: dict[str, Any]) -> None:
    """Kill the process that this test names: the runner's parent, or the worker itself."""
    add_line("calls", arguments["reference"])
    os.kill(os.getppid() if arguments["whom"] == "parent" else os.getpid(), signal.SIGKILL)
    time.sleep(WAIT_SECONDS)


def contract(name: str, **terms: Any) -> EffectContract:
    plain: dict[str, Any] = {
        "operation_id": lambda a: f"{name}:{a['reference']}",
        "network_drain": 0,
        "timeout": 30,
        "kill_grace": 1,
        "probe_attempts_max": 50,
    }
    return EffectContract(**{"name": name, **plain, **terms})


def declare(to: App, *, handlers: bool = True) -> None:
    """Register all contracts; without `handlers` only what an agent needs."""
    named: dict[EffectContract, Callable[..., Any]] = {}
    for isolation in (Isolation.PROCESS, Isolation.THREAD):
        probed = {"provider_reference": lambda a: a["reference"], "outcome_probe": find, "probe_timeout": 5}
        named[contract(f"charge_{isolation}", isolation=isolation, **probed)] = charge
        named[contract(f"lose_{isolation}", isolation=isolation, **probed | {"probe_timeout": 1, "probe_attempts_max": 1})] = lose
        named[contract(f"append_{isolation}", isolation=isolation)] = append
        named[contract(f"nap_{isolation}", isolation=isolation)] = nap
        named[contract(f"rest_{isolation}", isolation=isolation, timeout=300)] = nap
        named[contract(f"announced_{isolation}", isolation=isolation, announces_sending=True)] = announce
    named[contract("charge_async", isolation="async", **probed | {"outcome_probe": afind})] = acharge
    keyed = {"provider_idempotency_key": lambda a: a["reference"], "provider_idempotency_guaranteed": True}
    named[contract("stubborn", isolation="process", timeout=6, kill_grace=0.5, **keyed)] = stubborn
    named[contract("short_thread", isolation="thread", timeout=0.1)] = nap
    named[contract("short_process", isolation="process", timeout=1, kill_grace=0.5)] = nap
    named[contract("nap_async", isolation="async")] = anap
    named[contract("poison_process", isolation="process")] = poison
    named[contract("poison_thread", isolation="thread")] = poison
    for one, handler in named.items():
        if handlers:
            to.handler(one)(handler)
        else:
            to.register(one)


declare(app, handlers=os.environ.get("HANDLERS") != "none")

if __name__ == "__main__":
    charge_when_woken(sys.argv[1])
