"""The app of the crash matrix: one contract for each way to run a handler and each kind of destination.

What is held: the first attempt, at the point that its arguments name, until the file `go` is there. Marks say how far it came.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from settled import App, EffectContract, ProbeResult, RetryPolicy

LATE_SECONDS: Final = 1.0
KEY_SECONDS: Final = 0.05  # for which a forgetful destination knows a key
HORIZON_SECONDS: Final = 4.0  # what the contract declares of a destination that is late, or shows late
WAIT_SECONDS: Final = 60.0


class Variant(NamedTuple):
    """One destination as a contract knows it."""

    do: str = "commit"  # with the first request: commit, late, or never; any further one is committed
    has_probe: bool = False
    key: str | None = None  # "kept": deduplicated for ever; "expires": forgotten at once, the declared window over likewise
    lag: float = 0.0  # seconds after which a read shows an effect
    announces: bool = False


VARIANTS: Final = {
    "probe": Variant(has_probe=True),
    "probe_late": Variant("late", has_probe=True),
    "probe_never": Variant("never", has_probe=True),
    "probe_lag": Variant(has_probe=True, lag=LATE_SECONDS),
    "probe_announced": Variant(has_probe=True, announces=True),
    "probe_key_expires": Variant(has_probe=True, key="expires"),
    "blind": Variant(),
    "blind_never": Variant("never"),
    "blind_announced": Variant(announces=True),
    "key": Variant(key="kept"),
    "key_late": Variant("late", key="kept"),
    "key_never": Variant("never", key="kept"),
    "key_expires": Variant(key="expires"),
}
MODES: Final = {"process": "process", "thread": "thread", "async": "async", "async_process": "process"}


def marks() -> Path:
    return Path(os.environ["MARKS"])


def mark(name: str) -> None:
    """Leave the pid under this name, whole or not at all."""
    made = marks() / f".{name}.{os.getpid()}"
    made.write_text(str(os.getpid()))
    made.rename(marks() / name)


def is_held(arguments: dict[str, Any], ctx: Any, point: str) -> bool:
    """Leave a mark; return whether to wait here."""
    mark(f"{point}-{arguments['reference']}")
    return bool(ctx.attempt == 1 and arguments["point"] == point)


def request_of(arguments: dict[str, Any], ctx: Any, key: str | None) -> bytes:
    variant = VARIANTS[arguments["variant"]]
    hold = {"mid_request": "before", "committed": "after"}.get(arguments["point"]) if ctx.attempt == 1 else None
    order = {"reference": arguments["reference"], "do": variant.do, "hold": hold, "key": key, "late_seconds": LATE_SECONDS}
    body = json.dumps(order | ({"key_seconds": KEY_SECONDS} if variant.key == "expires" else {})).encode()
    return b"POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def body_of(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith((b"HTTP/1.0 200", b"HTTP/1.1 200")):
        raise ConnectionError(f"no answer: {head[:80]!r}")
    return json.loads(body)


def exchange(request: bytes) -> Any:
    with socket.create_connection(("127.0.0.1", int(os.environ["DESTINATION"]))) as connection:
        connection.sendall(request)
        return body_of(b"".join(iter(lambda: connection.recv(65_536), b"")))


def wait_for_go() -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not (marks() / "go").exists() and time.monotonic() < until:
        time.sleep(0.005)


def handle(arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any:
    if is_held(arguments, ctx, "entered"):
        wait_for_go()
    ctx.sending()
    if is_held(arguments, ctx, "sending"):
        wait_for_go()
    return exchange(request_of(arguments, ctx, idempotency_key))


async def ahandle(arguments: dict[str, Any], ctx: Any, idempotency_key: str | None) -> Any:
    if is_held(arguments, ctx, "entered"):
        await wait_for_go_without_a_thread()
    ctx.sending()
    if is_held(arguments, ctx, "sending"):
        await wait_for_go_without_a_thread()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["DESTINATION"]))
    try:
        writer.write(request_of(arguments, ctx, idempotency_key))
        return body_of(await reader.read())
    finally:
        writer.close()


async def wait_for_go_without_a_thread() -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not (marks() / "go").exists() and time.monotonic() < until:  # noqa: ASYNC110 - the mark is a file
        await asyncio.sleep(0.005)


def answer_to(arguments: dict[str, Any], seen: dict[str, int]) -> ProbeResult:
    reference = arguments["reference"]
    if seen["effects"]:
        return ProbeResult.committed(reference=reference)
    return ProbeResult.not_committed(healthy=True, terminal=not seen["pending"], reference=reference)


def question(arguments: dict[str, Any]) -> bytes:
    return f"GET /{arguments['reference']}?lag={VARIANTS[arguments['variant']].lag} HTTP/1.0\r\n\r\n".encode()


def ask(arguments: dict[str, Any]) -> ProbeResult:
    return answer_to(arguments, exchange(question(arguments)))


async def aask(arguments: dict[str, Any]) -> ProbeResult:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["DESTINATION"]))
    try:
        writer.write(question(arguments))
        return answer_to(arguments, body_of(await reader.read()))
    finally:
        writer.close()


def contract_of(mode: str, name: str) -> EffectContract:
    variant, is_async = VARIANTS[name], mode.startswith("async")
    terms: dict[str, Any] = {
        "isolation": MODES[mode],
        "timeout": 30,
        "kill_grace": 1,
        "network_drain": 0,  # one machine: what a dead process has sent has arrived
        "retry": RetryPolicy(max_attempts=4, initial=0.1),
        "announces_sending": variant.announces,
    }
    if variant.has_probe:
        terms |= {"outcome_probe": aask if is_async else ask, "provider_reference": lambda a: a["reference"], "probe_attempts_max": 200}
    if variant.do == "late":
        terms["commit_horizon"] = HORIZON_SECONDS
    if variant.lag:
        terms["read_lag"] = HORIZON_SECONDS
    if variant.key:
        terms |= {"provider_idempotency_key": lambda a: f"key:{a['reference']}", "provider_idempotency_guaranteed": True}
    if variant.key == "expires":
        terms |= {"provider_idempotency_window": 31.001, "key_margin": 0}  # a first attempt fits, a second never does
    return EffectContract(name=f"{mode}_{name}", operation_id=lambda a: a["reference"], **terms)


def declare(to: App, *modes: str) -> None:
    """Register the contracts of these ways to run a handler."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a window that no thread can keep to is a case here
        for mode in modes:
            for name in VARIANTS:
                handler: Callable[..., Any] = ahandle if mode.startswith("async") else handle
                to.handler(contract_of(mode, name))(handler)


def die_before_telling(runner: Any) -> None:
    """Let a runner die when the code of a first attempt has come back and nobody was told."""
    tell = runner._tell_end

    def die(self: Any, report: Any) -> None:
        if report.job.attempt == 1 and report.job.kind == "handler":
            os.kill(os.getpid(), signal.SIGKILL)
        tell(self, report)

    runner._tell_end = die


if os.environ.get("CRASH_IN_RUNNER") and hasattr(sys.modules["__main__"], "Runner"):
    die_before_telling(sys.modules["__main__"].Runner)
app = App()
declare(app, *os.environ.get("MODES", ",".join(MODES)).split(","))
