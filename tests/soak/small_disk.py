"""A file system that is really small, so that it is really full: an ext4 image or a tmpfs, where this user may mount one."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_CHUNKS = (1_048_576, 65_536, 4096, 512)


class Disk(NamedTuple):
    """Where it is, and what it is; `kind` is "" where it is an ordinary folder that nobody fills."""

    folder: Path
    kind: str

    @property
    def is_small(self) -> bool:
        return bool(self.kind)

    def fill(self) -> None:
        """Take every byte that is left."""
        with (self.folder / "filler").open("ab", buffering=0) as filler:
            for size in _CHUNKS:
                with contextlib.suppress(OSError):
                    while filler.write(b"\0" * size) == size:
                        pass

    def remount(self, mode: str) -> None:
        """Mount it anew, `ro` or `rw`. The system refuses `ro` while a file there is open for writing."""
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.folder)], check=True, capture_output=True)

    def free(self) -> None:
        """Give it back."""
        (self.folder / "filler").unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(beside: Path, mebibytes: int) -> Iterator[Disk]:
    """Yield a small file system, unmounted in the end; without the right to mount one an ordinary folder, which says so."""
    folder, image = beside / "disk", beside / "disk.img"
    folder.mkdir()
    kind = _mount(folder, image, mebibytes) if os.geteuid() == 0 else ""
    try:
        yield Disk(folder, kind)
    finally:
        if kind:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
        image.unlink(missing_ok=True)


def _mount(folder: Path, image: Path, mebibytes: int) -> str:
    if shutil.which("mkfs.ext4"):
        with image.open("wb") as file:
            file.truncate(mebibytes * 1_048_576)
        made = _ran("mkfs.ext4", "-q", "-m", "0", str(image)) and _ran("mount", "-o", "loop", str(image), str(folder))
        if made:
            return "ext4"
    return "tmpfs" if _ran("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)) else ""


def _ran(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
