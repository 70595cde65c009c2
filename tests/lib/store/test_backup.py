"""A copy of a ledger in use is whole, checked, private, and never takes the place of anything."""

import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from settled.core.errors import LedgerStateError, LedgerUnavailableError
from settled.store import audit
from settled.store.backup import BackupRefusedError, DamagedFileError, back_up
from settled.store.creation import Journal
from settled.store.ledger import Ledger
from settled.store.reads import find_row
from tests.lib.store.ledgers import monotonic_us, new_ledger, settle, submit

STAMP = "20261130T124238Z"


@pytest.mark.promise("S28")
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_backup_beside_four_writers_holds_all_that_was_committed_before_it(tmp_path: Path, journal: Journal) -> None:
    ledger = new_ledger(tmp_path, journal=journal)
    before = [f"before-{number}" for number in range(200)]
    settle(ledger, *submit(ledger, *before))
    stop, failed = threading.Event(), []

    def write(writer: int) -> None:
        mine = Ledger(str(ledger.path), monotonic_us=monotonic_us)
        number = 0
        try:
            while not stop.is_set():
                submit(mine, f"w{writer}-{number}")
                number += 1
        except Exception as error:
            failed.append(error)
        finally:
            mine.close()

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for one in writers:
        one.start()
    told: list[tuple[int, int]] = []
    try:
        copies = [back_up(ledger, tmp_path / f"{number}.db", stamp=STAMP, progress=lambda *one: told.append(one)) for number in range(3)]
    finally:
        stop.set()
        for one in writers:
            one.join()
    assert failed == []
    assert told[-1][0] == told[-1][1] > 0
    for made in copies:
        assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
        copy = Ledger(str(made.path), monotonic_us=monotonic_us)
        assert audit.verify(copy) == []
        assert audit.head(copy) == (made.seal, made.head)
        with copy.read() as transaction:
            assert all(find_row(transaction, one) is not None for one in before)
        assert copy.misplaced  # a copy is not the ledger: nothing is dispatched from it
        copy.close()
        with pytest.raises(BackupRefusedError) as refused:
            back_up(ledger, made.path, stamp=STAMP)
        assert refused.value.exit_code == 4
        assert made.path.stat().st_size == made.size_bytes
    assert [one for one in os.listdir(tmp_path) if one.endswith(".part") or ".part-" in one] == []
    ledger.close()


@pytest.mark.promise("S28", part="a file that is there is left untouched")
def test_a_backup_never_takes_the_name_of_what_is_there(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    there, dangling = tmp_path / "there.db", tmp_path / "dangling"
    there.write_text("mine")
    dangling.symlink_to(tmp_path / "nowhere")
    for taken in (there, dangling, ledger.path, tmp_path / "missing" / "x.db"):
        with pytest.raises(BackupRefusedError):
            back_up(ledger, taken, stamp=STAMP)
    assert there.read_text() == "mine" and not (tmp_path / "nowhere").exists()
    folder = tmp_path / "copies"
    folder.mkdir()
    assert back_up(ledger, folder, stamp=STAMP).path == folder / f"settled-{STAMP}.db"
    with pytest.raises(BackupRefusedError):
        back_up(ledger, folder, stamp=STAMP)
    assert os.listdir(folder) == [f"settled-{STAMP}.db"]
    ledger.close()


def test_a_damaged_ledger_gives_no_backup(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    settle(ledger, *submit(ledger, *(f"op-{number}" for number in range(400))))
    ledger.close()
    with ledger.path.open("r+b") as file:
        file.seek(4096 * 20 + 50)
        file.write(b"\xff" * 4000)
    with pytest.raises((DamagedFileError, LedgerStateError)):
        back_up(ledger, tmp_path / "copy.db", stamp=STAMP)
    assert not (tmp_path / "copy.db").exists()
    ledger.close()


@pytest.mark.parametrize("free", [0, 10_000])
def test_a_full_disk_leaves_nothing_of_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    ledger = new_ledger(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("settled.store.backup.disk_usage", lambda _path: usage._replace(free=free))
    with pytest.raises(LedgerUnavailableError, match="no room"):
        back_up(ledger, tmp_path / "copy.db", stamp=STAMP)
    assert sorted(one for one in os.listdir(tmp_path) if "copy" in one) == []
    ledger.close()
