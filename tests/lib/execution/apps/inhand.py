"""An app whose one handler notes in a file that it was entered, and then does what its arguments say."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from acting import App


def act(arguments: dict[str, Any]) -> Any:
    with Path(arguments["log"]).open("a") as log:
        log.write(f"{arguments['n']} {os.getpid()}\n")
    match arguments.get("do"):
        case "raise":
            raise ValueError("something may be left")
        case "exit":
            os._exit(3)
        case "hang":
            if arguments.get("ignore"):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(arguments.get("seconds", 60))
    return os.getpid()


app = App(act)
