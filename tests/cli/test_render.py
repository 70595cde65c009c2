"""Tables at a terminal, wide and narrow."""

import contextlib
import fcntl
import os
import pty
import struct
import termios

import pytest

from settled import App
from tests.cli.conftest import Terminal
from tests.cli.terminal import start


@pytest.mark.parametrize("columns", [30, 80, 200])
def test_no_value_is_cut_however_narrow_the_terminal_is(terminal: Terminal, app: App, columns: int) -> None:
    app.submit("pay", {"n": 1})
    terminal.lost(app, n=2, says="[bold]no markup[/bold]")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = start(terminal.folder, "op", "show", "pay:2", stdin=-3, stdout=theirs, stderr=-3)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # how a terminal tells that its other end is closed
        while part := os.read(ours, 65_536):
            said += part
    os.close(ours)
    assert command.wait() == 0
    text = said.decode()
    for value in ("pay:2", "quarantined", "UNKNOWN", "handler_error", "[bold]no markup[/bold]"):
        assert value in text
