"""The server and a client that nobody here wrote: the TypeScript SDK from npm, over stdio and over HTTP.

It is installed by name into a cache folder. Where node, npm or the network is missing, the tests say so and are skipped.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from settled import App, Status
from settled.testing import running_provider

ROOT = Path(__file__).resolve().parents[3]
SHOP = ROOT / "examples"
SDK = "@modelcontextprotocol/sdk@^1.20"
SETTLED = [sys.executable, "-c", "from settled_cli.main import main; main()"]
PAYMENT = {"invoice": "1042", "cents": 2500, "note": "as agreed"}
ID = "invoice:1042:payment"
TOKEN = "0123456789abcdef" * 2

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("second-client")]


@pytest.fixture(scope="module")
def sdk() -> Path:
    """The folder of the SDK, installed on first use."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"THE SECOND MCP CLIENT DID NOT RUN: {' and '.join(missing)} not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "settled-tests" / "mcp-sdk-1"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / "node_modules/@modelcontextprotocol/sdk"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "installed").exists():
            command = ["npm", "install", "--prefix", str(cache), "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", SDK]
            try:
                ended = subprocess.run(command, capture_output=True, text=True, timeout=180)
            except subprocess.TimeoutExpired:
                pytest.skip("THE SECOND MCP CLIENT DID NOT RUN: npm install did not end in 180 s")
            if ended.returncode != 0:
                pytest.skip(f"THE SECOND MCP CLIENT DID NOT RUN: npm install failed: {ended.stderr.strip()[-300:]}")
            (cache / "installed").touch()
    return folder


@contextlib.contextmanager
def process(command: list[str], environ: dict[str, str], **streams: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, cwd=SHOP, env=environ, text=True, **streams) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def environment(folder: Path, provider_url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SETTLED_")}
    floors = os.pathsep.join(str(ROOT / floor) for floor in ("lib", "worker", "cli"))
    return kept | {
        "PYTHONPATH": floors,
        "SETTLED_DATABASE": str(folder / "settled.db"),
        "SETTLED_APP": "invoices:app",
        "SETTLED_MCP_TOKEN": TOKEN,
        "PROVIDER_URL": provider_url,
    }


def second_client(sdk: Path, conversation: str, options: dict[str, Any]) -> list[str]:
    return ["node", str(Path(__file__).with_name("mcp_client.mjs")), str(sdk), conversation, json.dumps(options)]


def hear(client: subprocess.Popen[str]) -> Any:
    assert client.stdout is not None
    line = client.stdout.readline()
    assert line, "the client has ended"
    return json.loads(line)


@pytest.mark.promise("S128", part="an answer lost to SIGKILL of server and worker, asked for again by an independent client")
def test_an_answer_that_was_lost_to_a_kill_is_found_and_the_destination_counts_one(sdk: Path, tmp_path: Path) -> None:
    app = App(tmp_path / "settled.db")
    app.create_database()
    with running_provider() as payments:
        environ = environment(tmp_path, payments.url)
        options = {"command": [*SETTLED, "mcp", "--wait", "120"], "cwd": str(SHOP), "env": environ, "args": PAYMENT}
        names = {"tool": "submit_pay_invoice", "wait": "wait_pay_invoice"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        worker = [*SETTLED, "worker", "run"]
        payments.client.fail_next("hang", seconds=100)
        with process(second_client(sdk, "lost", options | names), environ, **pipes) as client:
            assert client.stdin is not None
            with process(worker, environ) as first:
                server = hear(client)["pid"]
                assert payments.client.wait(ID, "committed", timeout=120)
                first.kill()
                os.kill(server, signal.SIGKILL)
            assert "closed" in hear(client)["lost"]["message"].lower()
            with process(worker, environ):
                client.stdin.write("go\n")
                client.stdin.flush()
                asked = hear(client)["first"]
                assert (asked["operation_id"], asked["created"]) == (ID, False)
                told = hear(client)["told"]
        assert (told["effect_status"], told["next_action"], payments.client.count(ID)) == ("confirmed", "use_result", 1)
    assert app.get(ID).attempts == 1  # two submissions, one handler, one payment
    app.close()


@pytest.fixture
def talked(sdk: Path, tmp_path: Path) -> Iterator[tuple[dict[str, Any], App]]:
    """What the second client was told in one conversation over HTTP, and the ledger behind it; nobody dispatches."""
    app = App(tmp_path / "settled.db")
    app.create_database()
    environ = environment(tmp_path, "http://127.0.0.1:9")
    with process([*SETTLED, "mcp", "--http", "127.0.0.1:0", "--wait", "0"], environ, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        url = next(line for line in server.stderr if line.startswith("settled: MCP at ")).split()[-1]
        options = {"url": url, "token": TOKEN, "args": PAYMENT, "tool": "submit_pay_invoice", "wait": "wait_pay_invoice"}
        ended = subprocess.run(second_client(sdk, "talk", options), capture_output=True, text=True, timeout=240)
        assert ended.returncode == 0, ended.stderr
        said: dict[str, Any] = {}
        for line in ended.stdout.splitlines():
            said |= json.loads(line)
        assert server.poll() is None  # nothing of it ended the server
        yield said, app
    app.close()


@pytest.mark.promise("S128", part="an independent client lists exactly these, and asks once")
@pytest.mark.promise("S39", part="an independent client finds no operator's tool")
def test_a_whole_conversation_over_http(talked: tuple[dict[str, Any], App]) -> None:
    said, app = talked
    assert said["stranger"]["code"] == 401
    assert list(said["tools"]) == ["submit_pay_invoice", "get_pay_invoice", "wait_pay_invoice"]
    assert said["tools"]["submit_pay_invoice"] == {
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": True,
        "openWorldHint": True,
    }
    assert said["tools"]["get_pay_invoice"]["readOnlyHint"] and said["tools"]["wait_pay_invoice"]["readOnlyHint"]

    assert sorted(one["told"]["created"] for one in said["both"]) == [False, False, False, True]
    assert {one["told"]["operation_id"] for one in said["both"]} == {ID}
    reworded, conflict, another = (said[name]["told"] for name in ("reworded", "conflict", "another"))
    assert (reworded["operation_id"], reworded["created"], said["reworded"]["failed"]) == (ID, False, False)
    assert (conflict["effect_status"], conflict["next_action"], said["conflict"]["failed"]) == ("conflict", "do_not_retry", True)
    assert (another["operation_id"], another["created"]) == ("invoice:7:payment", True)
    assert [(one["told"]["effect_status"], one["failed"]) for one in said["hostile"]] == [("invalid_arguments", True)] * 6
    assert "413" in json.dumps(said["huge"])
    assert (said["unknown"]["code"], said["method"]["code"], said["absent"]["code"]) == (-32602, -32601, -32602)
    assert said["status"] == {"counts": {"pay_invoice": {"prepared": 2}}}

    assert "enough" in said["cancelled"]["message"] and said["reports"] >= 1
    assert said["late"]["code"] == -32001  # the client's own limit of time
    assert said["again"]["told"]["effect_status"] == "prepared"
    assert "answered" not in said["gone"]
    assert (said["back"]["told"]["operation_id"], said["back"]["told"]["created"]) == (ID, False)

    # Whatever was cancelled, lost and repeated: two requests, and nothing else, are in the ledger.
    assert {one.operation_id: one.status for one in app.list()} == {ID: Status.PREPARED, "invoice:7:payment": Status.PREPARED}
    assert [event.type for event in app.events(ID)] == ["submitted"]
