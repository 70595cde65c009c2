"""Settings: what can be set, where it is read from, which ledger is meant."""

from settled.config.database import DatabaseChoice, is_same_database, mask_url, resolve_database
from settled.config.loading import Loaded, load_settings
from settled.config.settings import ContractSettings, Settings, SweepSettings
from settled.config.show import ShownSetting, shown_settings

__all__ = [
    "ContractSettings",
    "DatabaseChoice",
    "Loaded",
    "Settings",
    "ShownSetting",
    "SweepSettings",
    "is_same_database",
    "load_settings",
    "mask_url",
    "resolve_database",
    "shown_settings",
]
