"""The store: all SQL, and the one guarded writer. No floor above knows which database it is."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from settled.store import backup as backup
    from settled.store import creation as creation
    from settled.store import ledger as ledger
    from settled.store import people as people
    from settled.store import transaction as transaction
else:
    from settled.lazily import modules_of

    __getattr__ = modules_of(__name__)
