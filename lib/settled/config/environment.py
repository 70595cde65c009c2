"""Read settings from environment variables with pydantic-settings: which parts of a name are nested, and what is JSON."""

from collections.abc import Mapping
from typing import cast

from pydantic import BaseModel
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

__all__ = ["Environment", "SettingsError"]


class Environment(EnvSettingsSource):
    """pydantic-settings' reading of the environment, of a given one."""

    def __init__(self, settings: type[BaseModel], given: Mapping[str, str], prefix: str, delimiter: str) -> None:
        self._given = given
        # It asks a model for its fields and its configuration only.
        super().__init__(cast("type[BaseSettings]", settings), case_sensitive=False, env_prefix=prefix, env_nested_delimiter=delimiter)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._given.items()}
