"""A PostgreSQL server of our own on loopback, where its binaries are installed."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

_NEEDED = ("initdb", "pg_ctl", "createdb")


def binaries() -> Path | None:
    """Return the folder of PostgreSQL's server binaries, None where there is none."""
    beside = shutil.which("initdb")
    candidates = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *([Path(beside).parent] if beside else [])]
    return next((one for one in candidates if all((one / name).is_file() for name in _NEEDED)), None)


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a server while the block runs, and yield its URL. As root it runs as the user `postgres`: it refuses root."""
    found = binaries()
    if found is None:
        raise RuntimeError("no PostgreSQL server is installed here")
    place = folder / "postgres"
    place.mkdir()
    owner = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    if owner is not None:
        for each in (folder, *folder.parents[:-2]):
            if each.owner() == "root" and each != Path("/tmp"):
                each.chmod(0o755)
        os.chown(place, owner.pw_uid, owner.pw_gid)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]

    def run(name: str, *arguments: str) -> None:
        who = {"user": owner.pw_uid, "group": owner.pw_gid} if owner else {}
        subprocess.run([found / name, *arguments], check=True, capture_output=True, cwd="/", timeout=60, **who)  # type: ignore[call-overload]

    data = str(place / "data")
    run("initdb", "-D", data, "-U", "compare", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='{place}'"
    run("pg_ctl", "-D", data, "-w", "-t", "60", "-l", str(place / "log"), "-o", options, "start")
    try:
        run("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "compare", "compare")
        yield f"postgresql://compare@127.0.0.1:{port}/compare"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
