"""End a forked child of the user's code that would come back into ours.

Promise: where `leave_if_forked` returns, this is the process that was named: no child goes on as a second worker.
"""

from __future__ import annotations

import os
from typing import Final

FORKED_CHILD_CAME_BACK: Final = 70


def leave_if_forked(process: int) -> None:
    """End this process at once if it is not `process`. No exit hooks and no `finally`: they belong to the parent's work."""
    if os.getpid() != process:
        os._exit(FORKED_CHILD_CAME_BACK)
