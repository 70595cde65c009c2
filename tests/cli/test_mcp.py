"""`settled mcp` as it is started: what it needs, what it refuses, and who is let in over HTTP. Real processes."""

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from settled import App
from tests.cli.conftest import Terminal

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "0123456789abcdef" * 2
SHOP = '''
import os, subprocess, sys
from typing_extensions import TypedDict
from settled import App

print("printed while imported")
app = App()

class Refund(TypedDict):
    order: str

def refund_id(arguments):
    print("printed by a key function")
    os.write(1, b"written to descriptor 1\\n")
    subprocess.run(["echo", "written by a child"])
    return f"order:{arguments['order']}:refund"

@app.effect(operation_id=refund_id, arguments_type=Refund, isolation="thread")
def refund(arguments):
    """Give the money of an order back."""
'''


def start(folder: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    """Start `settled mcp` in a folder, without any setting of this machine."""
    unwanted = ("SETTLED_", "PYTHONUNBUFFERED")  # unbuffered, what is printed late would not show that it can come late
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    kept["PYTHONPATH"] = os.pathsep.join(str(ROOT / floor) for floor in ("lib", "worker", "cli"))
    command = [sys.executable, "-c", "from settled_cli.main import main; main()", "mcp", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=kept | environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(SHOP)
    App(folder / "settled.db").create_database()
    return folder


@pytest.mark.promise("S128", part="no app")
@pytest.mark.promise("S122", part="mcp")
def test_without_an_app_or_with_one_that_cannot_be_imported_it_ends_with_78(terminal: Terminal, app: App) -> None:
    ended = terminal("mcp")
    assert (ended.code, ended.out) == (78, "") and "mcp needs your contracts" in ended.err
    ended = terminal("mcp", "--app", "no_such_module:app")
    assert (ended.code, ended.out) == (78, "") and "no_such_module" in ended.err


def test_what_cannot_be_served_is_said_in_one_line_with_its_exit_code(terminal: Terminal, app: App) -> None:
    def said(code: int, *arguments: str) -> str:
        ended = terminal("mcp", "--app", terminal.reference, *arguments)
        assert (ended.code, ended.out) == (code, "") and "Traceback" not in ended.err, ended
        return ended.err

    assert "arguments_type" in said(78)  # the contracts of this app declare none
    assert "absent" in said(3, "--contract", "absent")
    assert "none was given" in said(78, "--open-arguments", "--http", "127.0.0.1:0")
    assert "no loopback address" in said(2, "--http", "0.0.0.0:8000")
    assert "--token-file is for --http" in said(2, "--token-file", "x")
    assert "there is no ledger" in said(78, "--open-arguments", "--database", "absent.db")
    assert not Path("absent.db").exists()
    assert "No such option" in said(2, "--token", TOKEN)  # a command line is read by everybody


def test_without_the_extra_it_is_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    """An interpreter that finds no SDK, as one without the extra."""
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('mcp', 'mcp_types', 'starlette', 'uvicorn'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from settled_cli.main import run\n"
        "print(run(['mcp', '--help']), run(['mcp']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ended.stdout.strip().endswith("0 78"), ended
    assert "pip install 'settled[mcp]'" in ended.stderr and len(ended.stderr.splitlines()) == 1


@pytest.mark.promise("S39", part="the official client, over standard input and output")
def test_the_official_client_over_standard_input_and_output(shop: Path) -> None:
    environ = {"PYTHONPATH": os.pathsep.join(str(ROOT / floor) for floor in ("lib", "worker", "cli")), "PATH": os.environ["PATH"]}
    arguments = ["-c", "from settled_cli.main import main; main()", "mcp", "--app", "shop:app", "--wait", "0"]
    command = StdioServerParameters(command=sys.executable, args=arguments, cwd=shop, env=environ)

    async def talk() -> tuple[list[str], Any, Any]:
        async with Client(command) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            asked = await client.call_tool("submit_refund", {"order": "official"})
            with pytest.raises(MCPError) as refused:
                await client.call_tool("approve_refund", {"order": "official"})
            return names, asked.structured_content, refused.value.code

    names, told, code_of_refusal = asyncio.run(asyncio.wait_for(talk(), 100))
    assert names == ["submit_refund", "get_refund", "wait_refund"]
    assert (told["operation_id"], told["created"], code_of_refusal) == ("order:official:refund", True, -32602)


def messages(*bodies: dict[str, Any]) -> str:
    return "".join(json.dumps({"jsonrpc": "2.0"} | body) + "\n" for body in bodies)


HELLO = {
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}
READY = {"method": "notifications/initialized"}


def test_standard_output_holds_nothing_but_the_protocol_and_bad_messages_end_nothing(shop: Path) -> None:
    """A raw client: the lines of the protocol written by hand. A client that closes its end in the middle of a wait ends the server."""
    server = start(shop, "--app", "shop:app", "--wait", "0", SETTLED_LOGS__LEVEL="debug")
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(messages(HELLO, READY))
    server.stdin.write("this is no JSON\n" + "[" * 100_000 + "\n" + '{"jsonrpc": "1.0"}\n')
    server.stdin.write(
        messages(
            {"id": 1, "method": "tools/call", "params": {"name": "submit_refund", "arguments": {"order": "1"}}},
            {"id": 2, "method": "tools/call", "params": {"name": "submit_refund", "arguments": ["1"]}},
            {"id": 3, "method": "operations/confirm", "params": {}},
            {"id": 4, "method": "tools/call", "params": {"name": "submit_refund", "arguments": {"order": "x" * 2_000_000}}},
        )
    )
    server.stdin.flush()
    heard = dict[Any, Any]()
    while not {0, 1, 2, 3, 4} <= heard.keys():
        message = json.loads(server.stdout.readline())
        heard[message.get("id")] = message
    assert heard[0]["result"]["serverInfo"]["name"] == "settled"
    assert heard[1]["result"]["structuredContent"]["operation_id"] == "order:1:refund"
    assert heard[2]["error"]["code"] == -32602 and heard[3]["error"]["code"] == -32601
    assert heard[4]["result"]["structuredContent"]["effect_status"] == "invalid_arguments"
    waiting = {"name": "wait_refund", "arguments": {"operation_id": "order:1:refund", "timeout_seconds": 300}}
    server.stdin.write(messages({"id": 5, "method": "tools/call", "params": waiting | {"_meta": {"progressToken": "p"}}}))
    server.stdin.flush()
    assert json.loads(server.stdout.readline())["method"] == "notifications/progress"
    out, err = server.communicate(timeout=60)  # closes its input: the client is gone
    assert server.returncode == 0, err
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in out.splitlines())
    for printed in ("printed while imported", "printed by a key function", "written to descriptor 1", "written by a child"):
        assert printed in err
    app = App(shop / "settled.db")
    assert [event.type for event in app.events("order:1:refund")] == ["submitted"]
    app.close()


@pytest.fixture(scope="module")
def served(shop: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """One server over HTTP, and its port."""
    server = start(shop, "--app", "shop:app", "--http", "127.0.0.1:0", "--wait", "0", SETTLED_MCP_TOKEN=TOKEN)
    assert server.stderr is not None
    url = next(line for line in server.stderr if line.startswith("settled: MCP at ")).split()[-1]
    yield server, int(url.rpartition(":")[2].partition("/")[0])
    if server.poll() is None:
        server.kill()
    server.communicate()


def post(port: int, body: str | bytes = "", *, headers: dict[str, str], method: str = "POST") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    about = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": f"Bearer {TOKEN}"}
    try:
        connection.request(method, "/mcp", body, {name: value for name, value in (about | headers).items() if value})
        return connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):
        return 413  # refused before it was read
    finally:
        connection.close()


@pytest.mark.xdist_group("served")
def test_over_http_only_who_knows_the_token_and_comes_from_no_web_page_is_served(served: tuple[subprocess.Popen[str], int]) -> None:
    _, port = served
    hello = json.dumps({"jsonrpc": "2.0"} | HELLO)
    assert post(port, hello, headers={}) == 200
    for wrong in ("", "Bearer", "Bearer ", f"bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", f"Bearer {TOKEN} ä"):
        assert post(port, hello, headers={"Authorization": wrong}) == 401, wrong
    for method in ("GET", "DELETE", "OPTIONS", "PUT"):
        assert post(port, headers={"Authorization": ""}, method=method) == 401
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "127.0.0.1@evil.example:80"):
        assert post(port, hello, headers={"Host": host}) == 421, host
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{port}", "http://localhost:6274"):
        assert post(port, hello, headers={"Origin": origin}) == 403, origin
    assert post(port, "x" * 3_000_000, headers={}) == 413
    assert post(port, "[" * 100_000, headers={}) == 400
    assert post(port, hello, headers={"Content-Type": "text/plain"}) == 400


@pytest.mark.xdist_group("served")
def test_a_second_server_at_the_port_is_refused_and_sigterm_ends_the_first_in_order(
    shop: Path, served: tuple[subprocess.Popen[str], int]
) -> None:
    server, port = served
    second = start(shop, "--app", "shop:app", "--http", str(port), SETTLED_MCP_TOKEN=TOKEN)
    out, err = second.communicate(timeout=60)
    assert (second.returncode, out) == (78, "") and "nothing can listen" in err and TOKEN not in err
    server.send_signal(signal.SIGTERM)
    out, err = server.communicate(timeout=60)
    assert (server.returncode, out) == (0, "") and "Traceback" not in err and TOKEN not in err
