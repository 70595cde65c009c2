"""Run the command line for tests: in this process where that is enough, as a real process where pipes and signals matter."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "settled_cli.main"]

# A module that a test puts into its own folder. What `how` says is what the destination does.
EFFECTS = textwrap.dedent(
    """
    from settled import App, EffectRejected, ProbeResult

    app = App()

    @app.effect(name="pay", operation_id=lambda a: f"pay:{a['n']}", isolation="thread", network_drain=0)
    def pay(arguments):
        if arguments.get("how") == "lose":
            raise RuntimeError(arguments.get("says", "the answer was lost"))
        if arguments.get("how") == "refuse":
            raise EffectRejected("declined")
        return {"paid": arguments["n"]}

    @app.effect(
        name="send", isolation="thread", network_drain=0,
        operation_id=lambda a: f"send:{a['n']}", provider_reference=lambda a: f"ref:{a['n']}",
    )
    def send(arguments):
        raise RuntimeError("the answer was lost")

    @send.probe
    def was_sent(arguments):
        if arguments.get("how") != "found":
            return ProbeResult.unknown()
        return ProbeResult.committed(reference=f"ref:{arguments['n']}", output=1)

    @app.effect(name="drain", operation_id=lambda a: f"drain:{a['n']}", isolation="thread")
    def drain(arguments):
        raise RuntimeError("the answer was lost")

    @app.effect(name="gift", operation_id=lambda a: f"gift:{a['n']}", isolation="thread", approval="required")
    def gift(arguments):
        return None
    """
)


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """Return an environment that finds our packages from any folder and sets nothing of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    places = [ROOT / "lib", ROOT / "worker", ROOT / "cli", ROOT]
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, places)), **more}


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a command as a process of its own."""
    return subprocess.Popen([*COMMAND, *arguments], cwd=folder, env=environment(), text=True, **options)


def run_process(folder: Path, *arguments: str, stdin: str = "", seconds: float = 60.0, more: Mapping[str, str] | None = None) -> Ended:
    """Run a command as a process of its own until it ends."""
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=folder, env=environment(**(more or {})), text=True, input=stdin, capture_output=True, timeout=seconds
    )
    return Ended(done.returncode, done.stdout, done.stderr)
