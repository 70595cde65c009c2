"""Take a copied or moved ledger over: bind it to where it is now, and say what its unsettled operations may have become.

A copy does not know what was dispatched after it was made. Until it is adopted nothing is dispatched from it.
"""

from settled.core.decide_restore import decide_restored
from settled.core.errors import SettledError
from settled.core.words import Reason
from settled.shell import Shell
from settled.steps.persons import note_text, who_acts
from settled.store.agent_runs import fail_unfinished_runs
from settled.store.binding import binding_of
from settled.store.notes import note_adoption, take_restored, write_note
from settled.store.reads import find_unsettled
from settled.store.writer import Move, record_all


class NothingToAdoptError(SettledError):
    """The ledger is where it was made, or where it was adopted before."""

    exit_code = 4


def adopt(shell: Shell, reason: str, *, moved: bool) -> int:
    """Bind the ledger to its place; return how many operations were marked `restored`.

    `moved` is a person's assertion that the old place was stopped first and is gone: rows then stay as they are. Raises
    ValueError for a blank or too long reason, NothingToAdoptError where the binding matches, NotAuthenticatedError.
    """
    reason = note_text(reason, "reason")
    if not shell.ledger.misplaced:
        raise NothingToAdoptError(f"the ledger {shell.ledger.path} is where it belongs. Nothing was changed. There is nothing to adopt")
    person, marked = who_acts(shell), 0
    with shell.ledger.write() as transaction:
        now = shell.clock.now()
        after_id = 0
        restored = take_restored(transaction)
        stays = restored or moved  # a restoration has marked them, and what came after it is no part of the copy
        if restored or not moved:  # a run that goes on would ask again for what it asked for after the copy was made
            fail_unfinished_runs(transaction, Reason.RESTORED, now.wall_us, shell.limits.batch_max)
        while not stays and (rows := find_unsettled(transaction, after_id, shell.limits.batch_max)):
            moves = [Move(row, decide_restored(shell.full_case(transaction, row, now), reason, *person)) for row in rows]
            marked += record_all(transaction, moves)
            after_id = rows[-1].id
        for key, value in binding_of(shell.ledger.path).items():
            write_note(transaction, key, value)
        note_adoption(transaction, {"reason": reason, **person._asdict(), "moved": moved, "marked": marked, "at_us": now.wall_us})
    shell.ledger.close()  # opened again with its new binding
    return marked
