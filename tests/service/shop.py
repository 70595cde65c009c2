"""The app of the booted tests: effects that write a line, nap, or read a secret. It stands at /opt/shop inside."""

import os
import time
from pathlib import Path
from typing import Any

from settled import App

app = App()


@app.effect(name="note", operation_id=lambda a: f"note:{a['n']}", network_drain=0)
def note(arguments: dict[str, Any]) -> dict[str, Any]:
    """Say as whom this runs, and what of the system it can reach."""
    secret = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nowhere")) / "stripe"
    try:
        Path("/usr/written").write_text("x")
        usr = "writable"
    except OSError as error:
        usr = error.strerror
    try:
        home = sorted(os.listdir("/home"))
    except OSError as error:
        home = [str(error.strerror)]
    return {
        "uid": os.getuid(),
        "secret": len(secret.read_text().strip()) if secret.exists() else 0,
        "usr": usr,
        "home": home,
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }


@app.effect(name="nap", operation_id=lambda a: f"nap:{a['n']}", network_drain=0, timeout=300)
def nap(arguments: dict[str, Any]) -> str:
    """Nap for so many seconds, in a process of its own."""
    Path(f"/run/settled/main/napping-{arguments['n']}").touch()
    time.sleep(arguments["seconds"])
    return "rested"


@app.effect(name="here", operation_id=lambda a: f"here:{a['n']}", network_drain=0, timeout=300, isolation="thread")
def here(arguments: dict[str, Any]) -> str:
    """Nap in the caller's own process."""
    time.sleep(arguments["seconds"])
    return "rested"
