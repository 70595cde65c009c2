"""Temporal: the dev server, a workflow of one activity with a start-to-close timeout and the default retry policy."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.worker import Worker

from tests.compare.peers.base import DEADLINE_SECONDS, charge, folder, run, says


@activity.defn(name="charge")
def charge_once() -> dict[str, object]:
    return charge(timeout=60)


@workflow.defn(name="pay", sandboxed=False)
class Pay:
    @workflow.run
    async def run(self) -> dict[str, object]:
        answer: dict[str, object] = await workflow.execute_activity("charge", start_to_close_timeout=timedelta(seconds=DEADLINE_SECONDS))
        return answer


def address() -> str:
    return f"127.0.0.1:{os.environ['COMPARE_PORT']}"


def serve() -> None:
    command = [str(Path(sys.executable).with_name("temporal")), "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
    command += ["--port", os.environ["COMPARE_PORT"], "--db-filename", str(folder() / "temporal.db"), "--log-level", "never"]
    os.execv(command[0], command)


def ready() -> None:
    binary = str(Path(sys.executable).with_name("temporal"))
    sys.exit(subprocess.call([binary, "operator", "cluster", "health", "--address", address()], stdout=subprocess.DEVNULL))


def submit() -> None:
    async def start() -> None:
        client = await Client.connect(address())
        await client.start_workflow("pay", id="pay-1", task_queue="compare")

    asyncio.run(start())


def work() -> None:
    async def serve_queue() -> None:
        client = await Client.connect(address())
        with ThreadPoolExecutor(4) as pool:
            await Worker(client, task_queue="compare", workflows=[Pay], activities=[charge_once], activity_executor=pool).run()

    asyncio.run(serve_queue())


def verdict() -> None:
    async def ask() -> None:
        client = await Client.connect(address())
        found = (await client.get_workflow_handle("pay-1").describe()).status
        match found:
            case WorkflowExecutionStatus.COMPLETED:
                says("succeeded", final=True)
            case WorkflowExecutionStatus.RUNNING:
                says("running", final=False)
            case _:
                says("failed", final=True, person="find out")

    asyncio.run(ask())


if __name__ == "__main__":
    run(serve=serve, ready=ready, submit=submit, work=work, verdict=verdict)
