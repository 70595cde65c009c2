"""The settings that are searched: what a contract may have, where its handler runs, and which faults happen together."""

from typing import Final

from tests.model.setting import Setting, setting

# Each bounds its faults, so that the search ends: two dispatches; hangs and power cuts apart where a probe multiplies the states.
SETTINGS: Final[tuple[Setting, ...]] = (
    setting("none", "process"),
    setting("none", "thread"),
    setting("none", "async"),
    setting("none", "process", two_people=True, power_cuts=False),
    setting("none", "process", restores=True, hangs=False),
    setting("none", "process", announces=True, power_cuts=False),
    setting("key", "process", rejects=False, power_cuts=False),
    # Across a reboot only the wall clock says how long the machine was away: set back, it is believed (docs/limits.md).
    setting("key", "process", rejects=False, power_cuts=False, clock_steps=True, window=2, drain=0, commit=0, not_sent=1),
    setting("key", "thread", rejects=False, window=None),
    setting("probe", "process", rejects=False, power_cuts=False, hangs=False),
    setting("probe", "process", rejects=False, power_cuts=False, drain=0, commit=0),
    setting("probe", "process", rejects=False, hangs=False, drain=0, commit=0, probes=1),
    setting("probe", "thread", rejects=False, power_cuts=False, probes=1),
    setting("probe", "thread", rejects=False, power_cuts=False, hangs=False, confirm_on="probe", probes=1),
    setting("both", "process", rejects=False, power_cuts=False, hangs=False, probes=1),
    setting("both", "thread", rejects=False, power_cuts=False, hangs=False, window=None, probes=1),
)
