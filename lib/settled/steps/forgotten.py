"""Note incarnations that died without owning anything, and remove the files that no proof needs any more.

No row leads to such an incarnation, so that taking over rows never finds it. Promise: nothing is noted that is not proved gone
with all that it started; no file is removed that a lease, a probe or a missing fence still needs, nor one of another ledger.
"""

from collections.abc import Iterable
from pathlib import Path

from settled.shell import Shell
from settled.steps.readable import readable_case
from settled.steps.recover import Examiner, clear_away, waited_for
from settled.store import outbox, waiting, workers
from settled.store.transaction import Transaction
from settled.store.workers import WorkerRow


def end_forgotten(shell: Shell, examiner: Examiner, me: int | None) -> int:
    """Note as ended each incarnation that is gone though no row of its own waits, and remove its files; return how many."""
    if shell.ledger.misplaced:  # a copy's rows name the locks of the original
        return 0
    with shell.ledger.read() as transaction:
        owners = _owners(transaction) | {me}
        idle = [one for one in workers.live(transaction) if one.id not in owners and _is_ours(shell, one)]
    gone = [one for one in idle if examiner.judge(one).fence is not None]
    if not gone:
        return 0
    with shell.ledger.write() as transaction:
        for one in gone:
            workers.ended(transaction, one.id, shell.clock.now().wall_us)
    return clear_files(shell, me, gone)


def clear_files(shell: Shell, me: int | None, over: Iterable[WorkerRow] | None = None) -> int:
    """Remove the files of incarnations that are over and that nothing waits for; return of how many. None: whatever has files."""
    if shell.ledger.misplaced:
        return 0
    named = {path.stem for path in shell.ledger.run_directory.glob("*.lock")}
    with shell.ledger.read() as transaction:
        found = workers.of_incarnations(transaction, named) if over is None else over
        ended = [one for one in found if one.id != me and one.incarnation in named and _is_ours(shell, one)]
        if not ended:
            return 0
        needed = _owners(transaction) | _awaited(shell, transaction)
    return sum(clear_away(one) for one in ended if one.id not in needed and (over is not None or one.ended_us is not None))


def _owners(transaction: Transaction) -> set[int]:
    """Return the incarnations that hold something that is given back only once they are proved dead."""
    return {*waiting.lease_owners(transaction), *waiting.probe_owners(transaction), *outbox.owners(transaction)}


def _awaited(shell: Shell, transaction: Transaction) -> set[int]:
    """Return the incarnations whose end would still fence an attempt."""
    repeated = [readable_case(shell, transaction, row, shell.clock.now()) for row in waiting.find_repeated(transaction)]
    found = {owner for case in repeated if case is not None for owner in waited_for(case)}
    after_id = 0
    while rows := waiting.find_unfenced(transaction, after_id, shell.limits.batch_max):
        cases = [readable_case(shell, transaction, row, shell.clock.now()) for row in rows]
        found |= {owner for case in cases if case is not None for owner in waited_for(case)}
        after_id = rows[-1].id
    return found


def _is_ours(shell: Shell, worker: WorkerRow) -> bool:
    """Whether its files lie beside this ledger: those of an adopted copy's workers belong to the original."""
    return Path(worker.lock_path).parent.resolve() == shell.ledger.run_directory.resolve()
