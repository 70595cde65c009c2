"""Read a file with a secret in it, and refuse one that everybody may read.

Promise: nothing of what the file holds is ever part of an error.
"""

import os
import stat
from pathlib import Path

from settled.core.errors import ConfigurationError


def read_private(path: Path, what: str, *, bytes_max: int) -> str:
    """Return the text of a file, `bytes_max` characters of it at most; `what` is what an error calls it.

    Raises ConfigurationError for a file that cannot be read, that is no text, or that is open to everybody. What a pipe is open to
    is for whoever made it to say.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
                raise ConfigurationError(f"the {what} {path} is open to everybody. Nothing was started. Run: chmod o-rwx {path}")
            return file.read(bytes_max)
    except OSError as error:
        raise ConfigurationError(f"the {what} {path} cannot be read ({error.strerror}). Nothing was started.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the {what} {path} is no text. Nothing was started.") from None
