"""A script without a `__main__` guard: importing it counts its runs, and running it twice would show."""

import os
from pathlib import Path

from effects import App

with Path(os.environ["RUN_COUNT"]).open("a") as file:
    file.write("run\n")

app = App()
