"""An agent pays over MCP, server and worker are killed before the answer comes, and the same call again finds one payment.

    python examples/agents/mcp_lost_answer.py [--provider-commits-twice]

Real processes: a payment provider, a worker, `settled mcp` over HTTP, and the official Python client; no model and no key. The provider
commits the payment and holds its answer back; then server and worker are killed with SIGKILL. Both are started again, and the agent
asks once more, in other words. Exit 0 if that is told as the confirmed payment and the provider's own count says 1, else 1.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from settled.testing import ProviderClient, running_provider

EXAMPLES = Path(__file__).resolve().parents[1]
SETTLED = [sys.executable, "-c", "from settled_cli.main import main; main()"]  # the command `settled`, wherever its script is
WAIT_SECONDS = 120.0
REFERENCE = "invoice:1042:payment"


@contextlib.asynccontextmanager
async def agent(url: str, token: str) -> AsyncIterator[Client]:
    """Connect as any MCP client does."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=WAIT_SECONDS) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def pay(url: str, token: str, note: str) -> dict[str, Any]:
    """Ask for the payment, then wait for as long as the record says so."""
    async with agent(url, token) as client:
        arguments: dict[str, Any] = {"invoice": "1042", "cents": 2500, "note": note}
        told = (await client.call_tool("submit_pay_invoice", arguments)).structured_content or {}
        print(f"agent: {told['effect_status']}, {told['next_action']}, created: {told['created']}")
        while told["next_action"] == "wait":
            told = (await client.call_tool("wait_pay_invoice", {"operation_id": told["operation_id"]})).structured_content or {}
        return told


async def lose(url: str, token: str, payments: ProviderClient, processes: list[subprocess.Popen[str]]) -> None:
    """Let the agent ask, and kill everything between the payment and its answer."""
    asked = asyncio.create_task(pay(url, token, "as agreed"))
    if not await asyncio.to_thread(payments.wait, REFERENCE, "committed", timeout=WAIT_SECONDS):
        raise SystemExit("mcp_lost_answer.py: the payment never reached the provider")
    for one in processes:
        one.kill()
        one.wait()
    ended = (await asyncio.gather(asked, return_exceptions=True))[0]
    print("committed at the provider; server and worker killed; the agent got", "no answer" if isinstance(ended, BaseException) else ended)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider-commits-twice", action="store_true", help="break the provider: the run must fail")
    twice = parser.parse_args().provider_commits_twice
    with tempfile.TemporaryDirectory(prefix="settled-mcp-") as folder, running_provider() as payments:
        environment = {
            **os.environ,
            "SETTLED_DATABASE": str(Path(folder) / "settled.db"),
            "SETTLED_MCP_TOKEN": secrets.token_hex(32),
            "PROVIDER_URL": payments.url,
        }
        subprocess.run([*SETTLED, "init"], env=environment, check=True, stdout=subprocess.DEVNULL)
        return play(environment, payments.client, twice=twice)


def play(environment: dict[str, str], payments: ProviderClient, *, twice: bool) -> int:
    token = environment["SETTLED_MCP_TOKEN"]
    if twice:
        payments.fail_next("commit_twice", hold_seconds=0)
    else:
        payments.fail_next("hang", seconds=60)
    with process(environment, "worker", "run") as worker, served(environment) as (server, url):
        asyncio.run(lose(url, token, payments, [server, worker]))
    with process(environment, "worker", "run"), served(environment) as (_, url):
        told = asyncio.run(asyncio.wait_for(pay(url, token, "The first one surely failed, so pay it now, please."), WAIT_SECONDS))
    count = payments.count(REFERENCE)
    print(f"told: {told['effect_status']} for {told['operation_id']}; payments at the provider: {count}")
    good = told["effect_status"] == "confirmed" and told["operation_id"] == REFERENCE and count == 1
    print("one payment was committed" if good else "NOT one payment was committed")
    return 0 if good else 1


@contextlib.contextmanager
def served(environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `settled mcp` over HTTP on a free port; give the process and its URL."""
    with process(environment, "mcp", "--http", "127.0.0.1:0", stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if line.startswith("settled: MCP at "):
                yield server, line.split()[-1]
                return
        raise SystemExit("mcp_lost_answer.py: the server did not start")


@contextlib.contextmanager
def process(environment: dict[str, str], *command: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command of settled beside invoices.py while the block runs, then ask it to end, then make it."""
    with subprocess.Popen([*SETTLED, *command, "--app", "invoices:app"], cwd=EXAMPLES, env=environment, text=True, **streams) as started:
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                started.kill()


if __name__ == "__main__":
    sys.exit(main())
