"""The parts of `settled db` that look after the file itself: backup, restore, purge, checkpoint."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from settled.encryption import KEY_ID, EncryptingCodec, new_key
from settled.steps.restore import restore as restore_ledger
from settled.steps.retain import purge_by_hand
from settled.store.maintenance import checkpoint as checkpoint_ledger
from settled.store.texts import rewrite
from settled_cli.invocation import SECONDS_MAX, Invocation, Leaf, Refused, usage_errors
from settled_cli.opening import ledger_file, open_app, open_app_for
from settled_cli.render import emit, write
from settled_cli.verdict import say
from settled_cli.workers import refuse_beside_others

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
Told = Callable[[int, int], None]


class Age(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """A time span: seconds, or a number with s, m, h or d."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds. Raises BadParameter."""
        said = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", str(value).strip())
        if said is None or not 0 < (seconds := float(said[1]) * _UNITS[said[2] or "s"]) < SECONDS_MAX:
            self.fail(f"{value!r} is no time span above 0, like 30d, 12h or 600.", param, ctx)
        return seconds


@click.command(cls=Leaf)
@click.argument("target", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.pass_obj
def backup(invocation: Invocation, target: Path) -> None:
    """Copy the ledger to a new file, or into a folder, while it is in use. Nothing is ever overwritten."""
    app = open_app(invocation)
    with progress("copying") as told:
        made = app.backup(target, progress=told)
    emit(invocation, {"backup": str(made.path), "bytes": made.size_bytes, "seal": made.seal, "head": made.head})


@click.command(cls=Leaf)
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option("--reason", required=True, help="Why; kept with your user name.")
@click.pass_obj
def restore(invocation: Invocation, source: Path, reason: str) -> None:
    """Replace the ledger by a backup. Stop every worker and every program that submits first.

    The old ledger is set aside. Nothing is dispatched before settled db adopt, and every unsettled operation is of unknown outcome:
    it may have been dispatched after the backup was made.
    """
    path = ledger_file(invocation)
    refuse_beside_others(invocation, path, "restore")
    app = open_app_for(invocation, path)
    with usage_errors(), progress("copying") as told:
        done = restore_ledger(app.shell, source, reason, stamp=app.stamp(), progress=told)
    emit(
        invocation,
        {"restored": str(done.path), "from": str(source), "replaced": None if done.replaced is None else str(done.replaced),
         "unknown": done.marked},
    )  # fmt: skip
    say("it is paused (restored): probes read, nothing is dispatched. Then: settled db adopt --reason …")


@click.command(cls=Leaf)
@click.option("--older-than", type=Age(), required=True, help="Since it was settled: 30d, 12h, 600 (seconds).")
@click.option("--contract", metavar="CONTRACT", help="Of this contract only.")
@click.option("--dry-run", is_flag=True, help="Count, and remove nothing.")
@click.pass_obj
def purge(invocation: Invocation, older_than: float, contract: str | None, dry_run: bool) -> None:
    """Remove arguments and outputs of settled operations. Identity, fingerprint, events and chain stay; what is unsettled keeps all."""
    app = open_app(invocation)
    done = purge_by_hand(app.shell, older_than, contract=contract, dry_run=dry_run, progress=counted)
    emit(invocation, {"purged": 0 if dry_run else done.purged, "would_be_purged": done.purged, "examined": done.examined})


@click.command(cls=Leaf)
@click.pass_obj
def checkpoint(invocation: Invocation) -> None:
    """Move the write-ahead log into the database as far as readers allow, and cut its file where it is too long. Blocks nobody."""
    done = checkpoint_ledger(open_app(invocation).ledger)
    emit(invocation, {"pages": done.pages, "behind": done.behind, "log_bytes": done.log_bytes, "truncated": done.truncated})
    if done.behind:
        say(f"{done.behind} pages stay in the log: somebody reads what is in them, or writes")


@click.command("new-key", cls=Leaf)
@click.argument("key_id", metavar="ID")
def new_key_line(key_id: str) -> None:
    """Print a new line ID:KEY for the key file. The first line of that file encrypts; keep the others for what is stored already."""
    if not KEY_ID.fullmatch(key_id):
        raise click.UsageError(f"the key ID {key_id!r} may have letters, digits, '.', '_' and '-' only, at most 64. No key was made")
    write(f"{key_id}:{new_key()}\n")


@click.command(cls=Leaf)
@click.pass_obj
def rekey(invocation: Invocation) -> None:
    """Encrypt every stored text with the first key. Workers may run if they know all keys; call it again after an interruption."""
    app = open_app(invocation)
    codec = app.shell.codec
    if not isinstance(codec, EncryptingCodec):
        raise Refused("no encryption key is set here. Nothing was changed. Set encryption.keys_file in the settings")
    seen, written = rewrite(app.ledger, lambda stored: None if codec.is_current(stored) else codec.encode(codec.decode(stored)), counted)
    emit(invocation, {"key": codec.key_id, "examined": seen, "encrypted": written})
    say("what was stored before may stay in the write-ahead log until a checkpoint, and in backups for as long as you keep them")


def counted(examined: int, _done: int) -> None:
    """Show at a terminal how many were examined."""
    if sys.stderr is not None and sys.stderr.isatty():
        click.echo(f"\r{examined} examined ", nl=False, err=True)


@contextmanager
def progress(what: str) -> Iterator[Told | None]:
    """Show at a terminal how far a copy is."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=1, label=what, file=sys.stderr) as bar:

        def told(done: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(done - bar.pos)

        yield told
