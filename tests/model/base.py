"""What every part of the world stands on: the setting, the ledger, and how a step is written down."""

from settled.core.words import Isolation
from tests.model.ledger import Ledger
from tests.model.setting import Setting
from tests.model.state import Attempt, State


class Base:
    """One setting and its ledger."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.ledger = Ledger(setting)
        self.process = setting.isolation is Isolation.PROCESS

    def _effects(self, state: State) -> int:
        return sum(one.provider == "committed" for one in state.attempts)

    def _with(self, state: State, number: int, attempt: Attempt) -> State:
        return state._replace(attempts=(*state.attempts[: number - 1], attempt, *state.attempts[number:]))

    def _moved(self, state: State, ledger: int) -> State:
        """The ledger has moved: what a person saw before is no longer the row's version."""
        looked = state.looked
        if ledger != state.ledger and looked is not None and not looked.startswith("stale"):
            looked = f"stale {looked}"
        return state._replace(ledger=ledger, looked=looked)
