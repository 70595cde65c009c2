"""Bring a backup back as the ledger, and say what its unsettled operations may have become since it was made.

Promise: nothing is dispatched from it until a person takes it over; every unsettled operation, one that was never dispatched too,
counts as perhaps dispatched after the backup.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from settled.core.decide_restore import decide_restored
from settled.execution.recorder import Recorder, RecorderUnreadableError
from settled.shell import Shell
from settled.steps.persons import Person, note_text, who_acts
from settled.store.backup import Progress
from settled.store.binding import KEYS
from settled.store.ledger import Ledger
from settled.store.notes import note_restoration, write_note
from settled.store.reads import find_unsettled
from settled.store.restoring import replace as put_in_the_ledgers_place
from settled.store.restoring import restored_copy
from settled.store.writer import Move, record_all

NOWHERE: Final = "restored"  # no host, device or inode is called so: the ledger is bound to no place until it is adopted


class Restored(NamedTuple):
    """What was done: where the old ledger is now, None where there was none, and how many operations are now unknown."""

    path: Path
    replaced: Path | None
    marked: int


def restore(shell: Shell, backup: Path, reason: str, *, stamp: str, progress: Progress | None = None) -> Restored:
    """Replace the ledger by a backup. The caller has seen that no worker lives.

    Raises ValueError for a blank reason, NotAuthenticatedError, RestoreRefusedError where somebody has the ledger open,
    ConfigurationError for what is no backup, DamagedFileError for one that is damaged; the ledger is as it was then.
    """
    reason = note_text(reason, "reason")
    path, person = shell.ledger.path, who_acts(shell)
    shell.ledger.close()
    with restored_copy(backup.absolute(), path, progress) as building:
        marked = _mark(shell, building, backup, reason, person)
        replaced = put_in_the_ledgers_place(path, building, stamp)
    return Restored(path, replaced, marked)


def _mark(shell: Shell, building: Path, backup: Path, reason: str, person: Person) -> int:
    """Mark what is unsettled, before anybody can open the file by the ledger's name."""
    ledger = Ledger(str(building), limits=shell.limits, monotonic_us=shell.clock.monotonic_us)
    there = replace(shell, ledger=ledger, contracts={}, _stored={}, _kept={}, _durable={})
    marked = after_id = 0
    try:
        with _recorders(shell.ledger.run_directory) as recorders, ledger.write() as transaction:
            now = shell.clock.now()
            while rows := find_unsettled(transaction, after_id, shell.limits.batch_max):
                moves = []
                for row in rows:
                    known = max((one.highest_attempt(row.id) or 0 for one in recorders), default=0)
                    moves.append(Move(row, decide_restored(there.full_case(transaction, row, now), reason, *person, known)))
                marked += record_all(transaction, moves)
                after_id = rows[-1].id
            for key in KEYS:
                write_note(transaction, key, NOWHERE)
            write_note(transaction, "epoch", secrets.token_hex(16))
            facts = {"from": str(backup), "reason": reason, **person._asdict(), "marked": marked, "at_us": now.wall_us}
            note_restoration(transaction, facts)
    finally:
        ledger.close()
    return marked


@contextmanager
def _recorders(run_directory: Path) -> Iterator[list[Recorder]]:
    """Open the flight recorders that are left of the ledger's workers: they may know attempts that the backup does not."""
    found = []
    for path in sorted(run_directory.glob("*.recorder")):
        try:
            found.append(Recorder.open(path))
        except RecorderUnreadableError:
            continue
    try:
        yield found
    finally:
        for one in found:
            one.close()
