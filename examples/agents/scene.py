"""What the examples of this folder play: the provider refunds and holds its answer back, the agent is killed and started again.

Each story is played two times: killed while the call is in flight, before the framework has kept anything of its end; and killed
after the run was paused. The scene prints one JSON line for each. Exit 0 if the provider's own count says 1 each time and the
agent was told so, else 1.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from settled import App
from settled.testing import ProviderClient, running_provider

HERE = Path(__file__).resolve().parent
WAIT_SECONDS = 120.0
REFERENCE = "order:1042:refund"
NOTES = ("as agreed", "The first refund surely failed, so refund it now, please.")


# ------------------------------------------------------------------ for the agents


def folder() -> Path:
    """Return where an agent keeps what outlives its process."""
    return Path(os.environ["SCENE_FOLDER"])


def asked() -> tuple[str, dict[str, Any]]:
    """Return what the model asks for, with a call ID: after the crash in other words, and under another one."""
    again = int(os.environ["SCENE_PROCESS"]) - 1
    return f"call_{uuid.uuid4().hex}", {"order": "1042", "cents": 2500, "note": NOTES[again]}


def paused(state: str) -> NoReturn:
    """Keep the framework's state of a run that waits, as a host does, and be killed."""
    kept = folder() / "state.json"
    kept.with_suffix(".new").write_text(state)
    kept.with_suffix(".new").rename(kept)
    while True:
        signal.pause()


def kept() -> str | None:
    """Return the state that was kept before the process was killed, if one was."""
    file = folder() / "state.json"
    return file.read_text() if file.exists() else None


# ------------------------------------------------------------------ the scene


def main(script: str, be_the_agent: Callable[[], Any]) -> int:
    """Play both stories of an example, or be its agent. What `be_the_agent` returns is the last thing that its model was told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", nargs="?", choices=["agent"], help=argparse.SUPPRESS)
    if parser.parse_args().role:
        print(json.dumps(be_the_agent()))
        return 0
    ends = [play(script, killed) for killed in ("in the call", "while it waited")]
    for end in ends:
        print(json.dumps(end))
    good = all(end["effects"] == 1 and end["told"] == "confirmed" for end in ends)
    print("one refund was done each time" if good else "NOT one refund was done each time")
    return 0 if good else 1


def play(script: str, killed: str) -> dict[str, Any]:
    """Play one story, and return how it ended."""
    with tempfile.TemporaryDirectory(prefix="settled-agents-") as scene, running_provider() as payments:
        database = Path(scene) / "settled.db"
        ledger = App(database)
        ledger.create_database()
        ledger.close()
        environment = {**os.environ, "SETTLED_DATABASE": str(database), "PROVIDER_URL": payments.url, "SCENE_FOLDER": scene}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))}
        payments.client.fail_next("hang", seconds=60)
        waits = "0.2" if killed == "while it waited" else "60"
        with agent(script, environment | {"SCENE_PROCESS": "1", "TOOL_WAIT": waits}) as first:
            try:
                until_killed(payments.client, Path(scene) / "state.json" if killed == "while it waited" else None, first)
            finally:
                first.kill()
        with agent(script, environment | {"SCENE_PROCESS": "2", "TOOL_WAIT": "60"}) as second:
            try:
                said = second.communicate(timeout=WAIT_SECONDS)[0]
            finally:
                second.kill()
        told = json.loads(said.splitlines()[-1])
        bodies = len((Path(scene) / "bodies.txt").read_text().splitlines())
        effects = payments.client.count(REFERENCE)
    return {"killed": killed, "bodies": bodies, "effects": effects, "told": told["effect_status"], "operation_id": told["operation_id"]}


def until_killed(payments: ProviderClient, state: Path | None, first: "subprocess.Popen[str]") -> None:
    """Return when the provider has committed and, if it is waited for, the state of the paused run was kept."""
    if not payments.wait(REFERENCE, "committed", timeout=WAIT_SECONDS):
        raise SystemExit("the refund never reached the provider")
    while state is not None and not state.exists():
        if first.poll() is not None:
            raise SystemExit("the agent ended before its run was paused")
        try:
            first.wait(0.05)
        except subprocess.TimeoutExpired:
            continue


def agent(script: str, environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, script, "agent"], env=environment, stdout=subprocess.PIPE, text=True)
