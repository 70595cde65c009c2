"""Procrastinate on PostgreSQL, with the periodic task of its documentation that retries stalled jobs."""

import asyncio
import logging
import os

import psycopg
from procrastinate import App, JobContext, PsycopgConnector, SyncPsycopgConnector

from tests.compare.peers.base import charge, run, says

DSN = os.environ["COMPARE_DSN"]
app = App(connector=PsycopgConnector(conninfo=DSN))


@app.task(name="pay", queue="compare")
def pay() -> dict[str, object]:
    return charge()


@app.periodic(cron="* * * * * */5")
@app.task(name="retry_stalled", queue="compare", pass_context=True, queueing_lock="retry_stalled")
async def retry_stalled(context: JobContext, timestamp: int) -> None:
    for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=3):
        await app.job_manager.retry_job(job)


def prepare() -> None:
    with App(connector=SyncPsycopgConnector(conninfo=DSN)).open() as opened:
        opened.schema_manager.apply_schema()


def submit() -> None:
    with App(connector=SyncPsycopgConnector(conninfo=DSN)).open() as opened:
        opened.configure_task("pay", queue="compare").defer()


def work() -> None:
    logging.disable(logging.CRITICAL)
    asyncio.run(_work())


async def _work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=4, queues=["compare"], update_heartbeat_interval=1, stalled_worker_timeout=3)


def verdict() -> None:
    with psycopg.connect(DSN) as connection:
        found = connection.execute("SELECT status::text FROM procrastinate_jobs WHERE task_name = 'pay'").fetchone()
    match found[0] if found else None:
        case "succeeded":
            says("succeeded", final=True)
        case "failed" | "aborted" | "cancelled":
            says("failed", final=True, person="find out")
        case _:
            says("running", final=False)


if __name__ == "__main__":
    run(prepare=prepare, submit=submit, work=work, verdict=verdict)
