"""The sections `http` and `metrics`: where a worker may be looked at from outside. Off by default, and never for another machine."""

import os
import re
from typing import Final, NamedTuple, Self

from pydantic import field_validator, model_validator

from settled.config.values import Count, Seconds, Section, is_loopback
from settled.core.limits import DEFAULTS

_UNIX: Final = "unix:"
_UNIX_PATH_BYTES_MAX: Final = 107  # of sun_path, without its ending NUL
_TCP: Final = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]/]+)):(?P<port>[0-9]{1,5})")


class UnixPlace(NamedTuple):
    path: str


class TcpPlace(NamedTuple):
    host: str
    port: int


def parse_listen(text: str) -> UnixPlace | TcpPlace:
    """Return the place that `listen` names: unix:/PATH or LOOPBACK:PORT. Raises ValueError that says what would be right."""
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not os.path.isabs(path) or "\0" in path or path.endswith("/"):
            raise ValueError(f"is {text!r}, but must name a socket by its absolute path, for example unix:/run/settled/main/http.sock")
        if len(os.fsencode(path)) > _UNIX_PATH_BYTES_MAX:
            raise ValueError(f"names a path of more than {_UNIX_PATH_BYTES_MAX} bytes, which no socket can have")
        return UnixPlace(path)
    found = _TCP.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65_535:
        raise ValueError(f"is {text!r}, but must be 127.0.0.1:PORT, [::1]:PORT or unix:/PATH")
    host = found["v6"] or found["host"]
    if host == "localhost":
        host = "127.0.0.1"
    if not is_loopback(host):
        raise ValueError(
            f"is {text!r}, which is not this machine alone; what it answers is for no network. Use 127.0.0.1, [::1] or unix:/PATH, "
            f"and let a proxy that authenticates go further"
        )
    return TcpPlace(host, int(found["port"]))


class HttpSettings(Section):
    """The worker's own endpoint: /healthz, /readyz, and /metrics where it is wanted."""

    listen: str | None = None
    """LOOPBACK:PORT or unix:/PATH. None: no endpoint."""
    metrics: bool = False
    """Serve /metrics, too. Needs the extra settled[metrics]."""

    @field_validator("listen")
    @classmethod
    def _listens_here_alone(cls, listen: str | None) -> str | None:
        if listen is not None:
            parse_listen(listen)
        return listen

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.metrics and self.listen is None:
            raise ValueError("metrics needs listen: without an address nothing is served (a file for node_exporter is metrics.textfile)")
        return self


class MetricsSettings(Section):
    textfile: str | None = None
    """A file ending in .prom, written for node_exporter's textfile collector. Needs the extra settled[metrics]. None: none."""
    textfile_seconds: Seconds = DEFAULTS.textfile_seconds
    contracts_max: Count = DEFAULTS.metrics_contracts_max
    """So many contracts have a label of their own; the others are counted together as `other`."""

    @field_validator("textfile")
    @classmethod
    def _is_a_file_to_be(cls, path: str | None) -> str | None:
        if path is not None and (not os.path.isabs(path) or not path.endswith(".prom") or "\0" in path):
            raise ValueError(f"is {path!r}, but must be the absolute path of a file that ends in .prom")
        return path
