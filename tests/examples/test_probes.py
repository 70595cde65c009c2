"""What the examples' probes answer: they are there to be copied, and a probe that is wrong is found only after something went wrong.

Each is called as a worker calls it, in a process of its own, in which its destination is empty, cannot be reached, or is broken.
"""

import importlib.util
import json
import socket
import socketserver
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from settled.testing import running_provider
from tests.cli.terminal import ROOT, environment

# Answers each line of standard input, a map of the environment, with what the probe is then found to say.
ASK = textwrap.dedent(
    """
    import importlib, json, os, sys
    from settled.clock import SystemClock
    from settled.core.evidence import ProbeResult
    from settled.execution.calling import Caller
    from settled.execution.context import Marks, ProbeContext
    from settled.execution.job import Kind
    from tests.lib.execution.inprocess import make_job
    module, name, arguments = sys.argv[1:]
    sys.path.insert(0, os.getcwd())
    effect = getattr(importlib.import_module(module), name)
    for line in sys.stdin:
        os.environ.update(json.loads(line))
        job = make_job(kind=Kind.PROBE, contract=name, arguments=arguments)
        report = Caller(clock=SystemClock().now).call(job, effect.contract, ProbeContext(job), Marks())
        answer = report.answer or ProbeResult.failed(report.error_class)
        said = {"status": answer.status, "terminal": answer.terminal, "healthy": answer.healthy, "error": answer.error_class}
        print(json.dumps(said), flush=True)
    """
)


class Example(NamedTuple):
    """Where a probe is, what it is asked, what it needs, in which variable it finds its destination, and what it says of an empty one."""

    folder: str
    module: str
    effect: str
    arguments: dict[str, Any]
    needs: tuple[str, ...]
    variable: str
    address: str
    empty: tuple[str, bool]  # status, healthy; an absence is terminal for nobody


EXAMPLES = [
    Example(
        ".", "invoices", "pay_invoice", {"invoice": "1042", "cents": 2500, "note": ""}, (), "PROVIDER_URL", "http://{}", ("unknown", False)
    ),
    Example("agents", "shop", "refund", {"order": "7", "cents": 100, "note": ""}, (), "PROVIDER_URL", "http://{}", ("unknown", False)),
    Example(
        "caldav", "app", "book_appointment", {"booking": "1", "start": "20260102T090000Z", "title": "Meet"}, ("radicale",),
        "CALDAV_URL", "http://{}", ("not_committed", True),
    ),
    Example(
        "mail", "app", "send_notice", {"notice": "1", "to": "c@settled.example", "subject": "s", "text": "t"}, ("aiosmtpd",),
        "IMAP_ADDRESS", "{}", ("not_committed", True),
    ),
    Example(
        "payments", "app", "refund_order", {"order_id": "1", "payment_intent": "pi_1", "amount_cents": 1}, ("stripe",),
        "STRIPE_API_BASE", "http://{}", ("not_committed", False),
    ),
]  # fmt: skip
EACH = pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            one,
            id=f"{one.folder}/{one.module}",
            marks=[
                pytest.mark.skipif(
                    any(importlib.util.find_spec(needed) is None for needed in one.needs),
                    reason=f"NOT TESTED: this example needs {', '.join(one.needs)}. Install it: pip install -e '.[test]'",
                )
            ],
        )
        for one in EXAMPLES
    ],
)
BROKEN = {
    "cut": b"",
    "no protocol": b"\x00\xff nonsense\r\n\r\n",
    "an error": b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    "a page of somebody else": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9\r\nConnection: close\r\n\r\n<p>hello\n",
    "another answer": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\nConnection: close\r\n\r\n{",
}
OURS = ("TypeError", "NameError", "UnboundLocalError", "ImportError", "AssertionError")  # mistakes of the probe itself


def ask(example: Example, *environments: dict[str, str]) -> list[dict[str, Any]]:
    """Return what the probe answers in each environment, one after the other."""
    command = [sys.executable, "-c", ASK, example.module, example.effect, json.dumps(example.arguments)]
    lines = "".join(json.dumps(one) + "\n" for one in environments)
    folder = ROOT / "examples" / example.folder
    done = subprocess.run(command, cwd=folder, env=environment(SCENE_FOLDER="."), input=lines, capture_output=True, text=True, timeout=100)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(environments), done.stderr
    return answers


@contextmanager
def says(answer: bytes) -> Iterator[str]:
    """Listen, read what comes first, and say this to everybody; give the address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if not answer.startswith(b"\x00"):  # whoever speaks no HTTP speaks first, as a mail server does
                self.request.recv(65_536) if answer else None
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@EACH
def test_a_destination_that_cannot_be_reached_or_is_broken_leaves_it_unknown(example: Example) -> None:
    with socket.socket() as closed, ExitStack() as listening:
        closed.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        places = {"nobody listens": f"127.0.0.1:{closed.getsockname()[1]}"}
        broken = {name: answer for name, answer in BROKEN.items() if example.folder != "mail" or not answer.startswith(b"HTTP")}
        places |= {name: listening.enter_context(says(answer)) for name, answer in broken.items()}
        answers = ask(example, *({example.variable: example.address.format(place)} for place in places.values()))
    for name, answer in zip(places, answers, strict=True):
        assert (answer["status"], answer["healthy"]) == ("unknown", False), (name, answer)
        assert answer["error"] not in OURS, (name, answer)


@contextmanager
def empty(example: Example, folder: Path) -> Iterator[dict[str, str]]:
    """Run the example's destination, in which there is nothing yet; give what finds it."""
    if example.folder in (".", "agents"):
        with running_provider(file=folder / "effects.jsonl") as running:
            yield {example.variable: running.url}
    elif example.folder == "payments":
        nothing = b'{"object":"list","data":[],"has_more":false,"url":"/v1/refunds"}'
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(nothing)}\r\nConnection: close\r\n\r\n"
        with says(head.encode() + nothing) as place:
            yield {example.variable: example.address.format(place)}
    else:
        code = (
            "import json, pathlib, sandbox, sys\n"
            "place = next(one for one in vars(sandbox).values() if isinstance(one, type) and one.__module__ == 'sandbox' and\n"
            "             issubclass(one, sandbox.Sandbox) and one is not sandbox.Sandbox)()\n"
            "print(json.dumps(dict(place.open(pathlib.Path(sys.argv[1])))), flush=True)\n"
            "sys.stdin.read()\n"
            "place.close()\n"
        )
        command = [sys.executable, "-c", code, str(folder)]
        where: dict[str, Any] = {"cwd": ROOT / "examples" / example.folder, "env": environment(), "text": True}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **where) as process:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
            process.communicate("", timeout=30)


@EACH
def test_an_empty_destination_proves_at_most_an_absence_that_is_not_terminal(tmp_path: Path, example: Example) -> None:
    with empty(example, tmp_path) as found:
        (answer,) = ask(example, found)
    assert (answer["status"], answer["healthy"], answer["terminal"], answer["error"]) == (*example.empty, False, None)
