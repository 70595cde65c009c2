"""Boot this machine's own systemd over a throw-away overlay of /, and run commands inside it.

Every write goes to a tmpfs that is unmounted at the end; the network is a private one. Needs root, overlayfs, and the package
systemd-container. The project is copied in, under /opt, with an environment that the system's own Python runs: an interpreter below
a home folder would be hidden from a unit with ProtectHome.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Self

from tests.conftest import eventually

ROOT = Path(__file__).parents[2]
MAIN = "settled@main.service"
PYTHON = Path("/usr/bin/python3")
ENVIRONMENT = ["env", "-i", "PATH=/opt/settled/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root"]
OFF = ("systemd-networkd-wait-online", "NetworkManager-wait-online", "systemd-resolved", "systemd-firstboot", "console-getty")
SCRIPT = "#!/opt/settled/bin/python\nimport sys\nfrom settled_cli.main import main\nsys.exit(main())\n"


class Ended(str):
    """What a command printed, with its exit code."""

    code: int

    @classmethod
    def of(cls, done: "subprocess.CompletedProcess[str]") -> Self:
        made = cls(done.stdout)
        made.code = done.returncode
        return made


def why_not() -> str | None:
    """Return why nothing can be booted here; None where it can."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    for tool in ("systemd-nspawn", "nsenter", "runuser"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: systemd-container, util-linux)"
    if not PYTHON.exists():
        return f"there is no {PYTHON}"
    version = subprocess.run([PYTHON, "-c", "import sys, venv; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False)
    if version.stdout.split() != [str(part) for part in sys.version_info[:2]]:
        return f"{PYTHON} is another version than the Python that runs these tests, so that it cannot load their packages"
    return None


class Machine:
    """One booted systemd."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.top = Path(tempfile.mkdtemp(prefix="settled-boot-"))
        self.root = self.top / "root"
        self.leader = 0

    def __enter__(self) -> Self:
        try:
            self._mount()
            self._furnish()
            self._boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, *command: str, seconds: float = 90.0, user: str | None = None) -> Ended:
        """Run a command inside to its end; standard error is part of what it printed."""
        who = ["runuser", "-u", user, "--"] if user else []
        whole = ["nsenter", "--target", str(self.leader), "--all", "--", *ENVIRONMENT, *who, *command]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return Ended.of(subprocess.run(whole, text=True, timeout=seconds, check=False, cwd="/", **options))  # type: ignore[call-overload]

    def shell(self, script: str, **options: float | str | None) -> Ended:
        return self.run("/bin/sh", "-c", script, **options)  # type: ignore[arg-type]

    def must(self, *command: str, **options: float | str | None) -> Ended:
        """Run a command that must succeed."""
        ended = self.run(*command, **options)  # type: ignore[arg-type]
        assert ended.code == 0, f"{' '.join(command)}: {ended.code}\n{ended}"
        return ended

    def property(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", unit, "-p", name, "--value").strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "-u", unit, "-o", "cat", "--no-pager", "-q")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def _mount(self) -> None:
        self._stack.callback(shutil.rmtree, self.top, ignore_errors=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", self.top], check=True)
        self._stack.callback(subprocess.run, ["umount", "-l", self.top], check=False)
        for name in ("upper", "work", "root"):
            (self.top / name).mkdir()
        options = f"lowerdir=/,upperdir={self.top}/upper,workdir={self.top}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.root], check=True)
        self._stack.callback(subprocess.run, ["umount", "-l", self.root], check=False)

    def _furnish(self) -> None:
        """Switch the host's services off, and put the project where a unit can see it."""
        system = self.root / "etc/systemd/system"
        for folder in [*system.glob("*.wants"), *system.glob("*.requires")]:
            shutil.rmtree(folder)
        for unit in OFF:
            (system / f"{unit}.service").unlink(missing_ok=True)
            (system / f"{unit}.service").symlink_to("/dev/null")
        (self.root / "etc/machine-id").unlink(missing_ok=True)
        place = self.root / "opt/settled"
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", place], check=True)
        packages = next(place.glob("lib/python3*/site-packages"))
        (packages / "project.pth").write_text("".join(f"/opt/project/{name}\n" for name in ("lib", "worker", "cli", "site")))
        self.write("/opt/settled/bin/settled", SCRIPT, 0o755)
        source = self.root / "opt/project"
        for name in ("lib", "worker", "cli"):
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        # Once for all the commands to come: none of them may write beside the source.
        subprocess.run([PYTHON, "-m", "compileall", "-q", "-s", self.root, "-p", "/", source], check=True)

    def _boot(self) -> None:
        binds = [f"--bind-ro={sysconfig.get_paths()['purelib']}:/opt/project/site"]
        plain = ["--register=no", "--keep-unit", "--link-journal=no", "--private-network", "--console=pipe"]
        console = self._stack.enter_context((self.top / "console.log").open("wb"))
        nspawn = subprocess.Popen(
            ["systemd-nspawn", "-q", "-D", self.root, "--boot", f"--machine=settled-{os.getpid()}", *plain, *binds,
             "systemd.unit=multi-user.target", "systemd.show_status=no"],
            stdin=subprocess.DEVNULL, stdout=console, stderr=console,
        )  # fmt: skip
        self._stack.callback(self._end, nspawn)
        self.leader = eventually(lambda: self._child_of(nspawn), seconds=30)
        eventually(lambda: self.run("systemctl", "is-system-running").strip() in ("running", "degraded"), seconds=60, pause_seconds=0.1)

    def _child_of(self, nspawn: "subprocess.Popen[bytes]") -> int:
        assert nspawn.poll() is None, (self.top / "console.log").read_text(errors="replace")
        for child in Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children").read_text().split():
            with contextlib.suppress(OSError):  # helpers of its own come and go before the first process is there
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return int(child)
        return 0

    def _end(self, nspawn: "subprocess.Popen[bytes]") -> None:
        if self.leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.leader, signal.SIGKILL)  # its pid namespace goes with it
        nspawn.kill()
        nspawn.wait()
