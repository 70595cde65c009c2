"""An app that other processes import: payments whose effects are lines of a file, in process isolation and in a thread."""

import builtins
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from settled import App, EffectRejected, NotSent, Operation, ProbeResult, RetryPolicy
from settled.core.limits import Limits

app = App(limits=Limits(beat_seconds=float(os.environ.get("BEAT_SECONDS", "10"))))
EFFECTS = Path(os.environ.get("EFFECTS", os.devnull))


def operation_id_of(arguments: dict[str, Any]) -> str:
    return f"invoice:{arguments['invoice_id']}:capture"


def commit(arguments: dict[str, Any]) -> None:
    """The effect: one whole line, written at once."""
    with EFFECTS.open("ab", buffering=0) as effects:
        effects.write(f"{arguments['invoice_id']}\n".encode())


def pay(arguments: dict[str, Any]) -> dict[str, Any]:
    """Do as the arguments say."""
    match arguments.get("do"):
        case "hang":
            commit(arguments)
            print("hanging", flush=True)
            time.sleep(600)
        case "wait":
            print("waiting", flush=True)
            EFFECTS.with_suffix(".entered").touch()
            time.sleep(600)
        case "exit":
            commit(arguments)
            os._exit(73)
        case "reject":
            raise EffectRejected("the card was declined", retryable=bool(arguments.get("retryable")))
        case "not sent":
            raise NotSent("dns")
        case "raise":
            raise ConnectionResetError(arguments.get("text", "reset"))
        case "leave a child and raise":
            child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            EFFECTS.with_suffix(".child").write_text(str(child.pid))
            commit(arguments)
            raise getattr(builtins, arguments["error"])("lost")
        case "segfault":
            import ctypes

            ctypes.string_at(0)
    commit(arguments)
    return {"status": "captured", "pid": os.getpid()}


def find(arguments: dict[str, Any]) -> ProbeResult:
    there = EFFECTS.is_file() and f"{arguments['invoice_id']}\n" in EFFECTS.read_text()
    return ProbeResult.committed(output={"status": "captured"}) if there else ProbeResult.not_committed(terminal=True, healthy=True)


terms: dict[str, Any] = {"operation_id": operation_id_of, "network_drain": 0, "kill_grace": 0.5, "retry": RetryPolicy(max_attempts=1)}
capture_payment = app.effect(name="capture_payment", isolation="thread", **terms)(pay)
probed = app.effect(name="probed", isolation="thread", outcome_probe=find, **terms)(pay)
in_process = app.effect(name="in_process", isolation="process", outcome_probe=find, **terms)(pay)
retried = app.effect(name="retried", isolation="process", outcome_probe=find, **terms | {"retry": RetryPolicy(max_attempts=3)})(pay)


def submit(arguments: dict[str, Any], **options: Any) -> Operation:
    return capture_payment.submit(arguments, **options)
