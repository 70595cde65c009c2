"""What a ledger says where it may not be written or has no room: tried by somebody whom permissions hold, without a mount."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.store.audit import verify
from settled.store.creation import create_ledger
from settled.store.ledger import Ledger
from tests.lib.store.ledgers import NOW_US, monotonic_us, run_python, submit

# Root is held by no permission: the child becomes somebody else, once all is imported, for that one may not read the interpreter.
REFUSED = """
import json, os, pathlib, resource, sys
from settled.store.ledger import Ledger
from settled.store.audit import verify
from tests.lib.store.ledgers import monotonic_us, submit
folder = pathlib.Path(sys.argv[1])
verify(Ledger(str(folder / "warm.db"), monotonic_us=monotonic_us))
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
ledger = Ledger(str(folder / "l.db"), monotonic_us=monotonic_us)
def tried(operation_id):
    try:
        submit(ledger, operation_id)
    except Exception as error:
        return type(error).__name__
    return "stored"
def pages(most):
    pooled = ledger.engine().raw_connection()
    pooled.cursor().execute(f"PRAGMA max_page_count={most}")
    pooled.close()
    with ledger.read() as transaction:
        transaction.cursor.execute(f"PRAGMA max_page_count={most}")
said = {"user": os.geteuid()}
if sys.argv[2] == "closed":
    said["closed"] = tried("op-closed")
else:
    said["open"] = tried("op-open")
    pages(1)  # it goes no lower than what is there
    said["no page"] = [tried(f"op-page-{number}") for number in range(40)][-1]
    pages(1073741823)
    said["room again"] = tried("op-again")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    said["no byte"] = tried("op-byte")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    said["in the end"] = tried("op-end")
    said["findings"] = len(verify(ledger))
print(json.dumps(said))
"""


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder that another user may enter, with a ledger that everybody may write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        for database in ("l.db", "warm.db"):
            create_ledger(folder / database, journal="delete", at_us=NOW_US)
            submit(Ledger(str(folder / database), monotonic_us=monotonic_us), "op-first")
            (folder / database).chmod(0o666)
            (folder / f"{database}.run").chmod(0o777)
        yield folder
        folder.chmod(0o700)


@pytest.mark.promise("S127")
def test_whom_permissions_hold_is_refused_and_a_full_disk_stores_nothing_by_halves(theirs: Path) -> None:
    said = json.loads(run_python(REFUSED, str(theirs), "room"))
    assert said.pop("user") != 0
    assert said == {
        "open": "stored", "no page": "LedgerUnavailableError", "room again": "stored",
        "no byte": "LedgerUnavailableError", "in the end": "stored", "findings": 0,
    }  # fmt: skip
    (theirs / "l.db").chmod(0o444)
    theirs.chmod(0o555)
    said = json.loads(run_python(REFUSED, str(theirs), "closed"))
    assert said.pop("user") != 0 and said["closed"] == "LedgerForbiddenError"
    theirs.chmod(0o777)
    assert verify(Ledger(str(theirs / "l.db"), monotonic_us=monotonic_us)) == []
