"""Tell which workers live: a row says who was there, only a held lock says who is."""

from pathlib import Path
from typing import Final

from settled.app import App
from settled.clock import boot_id_short
from settled.core.errors import SettledError
from settled.core.moment import SECOND_US
from settled.execution.incarnation import lock_is_free
from settled.store import workers
from settled.store.workers import WorkerRow
from settled_cli.invocation import Invocation, Refused
from settled_cli.opening import open_app

SEEN_LATELY_SECONDS: Final = 300


def live_workers(app: App) -> list[WorkerRow]:
    """Return the workers that hold their lock."""
    with app.ledger.read() as transaction:
        known = workers.live(transaction)
    return [one for one in known if one.kind == "worker" and is_alive(one)]


def is_alive(worker: WorkerRow) -> bool:
    """Return whether an incarnation, or something that it started, holds its lock."""
    return lock_is_free(Path(worker.lock_path), worker.lock_device, worker.lock_inode) is False


def held_locks(run_directory: Path) -> list[Path]:
    """Return the lock files that somebody holds, found without opening the ledger."""
    held = []
    for path in sorted(run_directory.glob("*.lock")):
        try:
            there = path.stat()
        except OSError:
            continue
        if lock_is_free(path, there.st_dev, there.st_ino) is False:
            held.append(path)
    return held


def seen_lately(invocation: Invocation) -> list[WorkerRow]:
    """Return who the ledger says was at work on it within the last minutes; nobody where it cannot be read, or is a fresh copy.

    A copy holds rows whose locks lie in the place that it was copied from.
    """
    app = open_app(invocation)
    try:
        with app.ledger.read() as transaction:
            known = workers.live(transaction)
    except SettledError:
        return []
    finally:
        app.ledger.close()
    since_us = app.shell.clock.now().wall_us - SEEN_LATELY_SECONDS * SECOND_US
    here = app.ledger.run_directory.resolve()
    return [
        one
        for one in known
        if one.boot_id == boot_id_short() and one.seen_us >= since_us and Path(one.lock_path).parent.resolve() == here
    ]


def refuse_beside_others(invocation: Invocation, path: Path, verb: str) -> None:
    """Raise Refused beside a live worker or caller; found by locks, without opening the ledger.

    Without a run directory there is no lock to be found, and a worker may hold one in a directory that somebody removed: the
    ledger then says who was there lately.
    """
    run_directory = path.with_name(path.name + ".run")
    if path.exists() and not run_directory.is_dir() and (lately := seen_lately(invocation)):
        pids = ", ".join(str(one.pid) for one in lately)
        raise Refused(
            f"the run directory {run_directory} is missing, and pid {pids} had the ledger {path} in use a few minutes ago: db {verb} is "
            f"refused. Nothing was changed. Stop them, then wait {SEEN_LATELY_SECONDS // 60} minutes"
        )
    held = held_locks(run_directory)
    if held:
        raise Refused(
            f"{len(held)} workers or callers have the ledger {path} in use: db {verb} is refused. Nothing was changed. Stop them first"
        )
