"""An app whose one handler ends in every way there is, and leaves processes and threads behind, as its arguments say."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from acting import App

from settled.core.errors import EffectRejected


def leave_child(arguments: dict[str, Any]) -> None:
    """Leave a command that sleeps: in the group, in a session of its own, without our environment, or forked and orphaned."""
    command = ["sleep", arguments["sleep"]]
    match arguments["child"]:
        case "group":
            subprocess.Popen(command)
        case "session":
            subprocess.Popen(command, start_new_session=True)
        case "hidden":
            subprocess.Popen(command, start_new_session=True, env={})
        case "orphan":
            if (child := os.fork()) == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execvp("sleep", command)
                os._exit(0)
            os.waitpid(child, 0)


def act(arguments: dict[str, Any]) -> Any:
    with Path(arguments["log"]).open("a") as log:
        log.write(f"{arguments['n']}\n")
    if "child" in arguments:
        leave_child(arguments)
    match arguments["do"]:
        case "return":
            return {"n": arguments["n"]}
        case "large":
            return {"n": arguments["n"], "text": "x" * 100_000}
        case "raise":
            raise ValueError(arguments["n"])
        case "reject":
            raise EffectRejected(str(arguments["n"]))
        case "thread":
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            raise ConnectionResetError(arguments["n"])
        case "exit":
            os._exit(arguments["n"] % 256)
        case "hang":
            time.sleep(60)
        case "open":
            arguments["kept"] = [os.open(Path(__file__), os.O_RDONLY) for _ in range(3)]  # the runner's own leak, and no one else's
            return {"n": arguments["n"]}
        case _:
            sys.exit(arguments["n"])


app = App(act)
