"""The checkpoint of the write-ahead log, where the disk does not play along."""

from pathlib import Path

import pytest

from settled.core.errors import LedgerUnavailableError
from settled.store.maintenance import checkpoint
from settled.store.sqlite_library import sqlite_module
from settled.testing import VirtualClock
from settled_worker.testing.simulate_disk import Disk
from tests.worker.harness import declare, make_app, submit


def test_a_checkpoint_on_a_full_disk_says_that_the_ledger_cannot_be_written(tmp_path: Path) -> None:
    with Disk(sqlite_module()) as disk:
        app = make_app(tmp_path, VirtualClock())
        try:
            declare(app)
            submit(app, 1)
            if app.ledger.meta["journal_mode"] != "wal":
                pytest.skip("this SQLite may not write ahead")
            disk.full = True
            with pytest.raises(LedgerUnavailableError, match="Free disk space"):
                checkpoint(app.ledger)
            disk.full = False
            assert checkpoint(app.ledger).pages > 0
        finally:
            disk.full = False
            app.close()
