"""Read a secret where the settings say it is, each time anew, so that it can be changed without a restart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from settled.config.escalation import SecretSettings
from settled.core.limits import DEFAULTS
from settled_worker.channels.message import DeliveryFailedError

CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"


def read_secret(where: SecretSettings, environ: Mapping[str, str]) -> str:
    """Return the secret without the line end behind it. Raises DeliveryFailedError that names the place and never the secret."""
    if where.env is not None:
        found = environ.get(where.env, "")
        place = f"the environment variable {where.env}"
    else:
        path = Path(where.file) if where.file is not None else _credential(where.credential or "", environ)
        place = str(path)
        found = _read(path)
    found = found.rstrip("\r\n")
    if not found:
        raise DeliveryFailedError(f"the secret is missing: {place} is not set or empty")
    if len(found) > DEFAULTS.secret_bytes_max:
        raise DeliveryFailedError(f"the secret in {place} is longer than {DEFAULTS.secret_bytes_max} bytes")
    return found


def _credential(name: str, environ: Mapping[str, str]) -> Path:
    folder = environ.get(CREDENTIALS)
    if not folder:
        raise DeliveryFailedError(f"the credential {name} cannot be read: {CREDENTIALS} is not set, so no service manager has passed any")
    return Path(folder) / name


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(DEFAULTS.secret_bytes_max + 2)
    except OSError as error:
        raise DeliveryFailedError(f"the secret in {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DeliveryFailedError(f"the secret in {path} is not UTF-8 text") from None
