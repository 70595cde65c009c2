"""The slots of an incarnation's flight recorder: given out, given back, never lost, whoever else wrote into the file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from settled import App
from settled.core.errors import LedgerUnavailableError
from settled.execution.recorder import Phase, Recorder, SlotState
from settled.execution.recorder_file import offset
from settled.presence import Presence


@pytest.fixture
def presence(tmp_path: Path) -> Iterator[Presence]:
    app = App(tmp_path / "settled.db")
    app.create_database()
    made = Presence(app.shell, kind="caller", contracts=(), slots=1)
    yield made
    made.close()
    app.close()


@pytest.mark.promise("S01", part="a slot that an observer revoked while its owner freed it is used again")
def test_a_slot_revoked_while_it_was_freed_is_given_out_again(presence: Presence) -> None:
    slot = presence.take_slot(7, 1)
    observer = Recorder.open(presence.recorder.path)
    presence.give_slot(slot, 7, 1)
    observer._write(slot, SlotState(7, 1, Phase.REVOKED, False))  # what it had read before is decided after
    observer.close()
    assert presence.free_slots == 1
    assert presence.take_slot(8, 1) == slot
    assert presence.recorder.enter(slot, 8, 1, None)


@pytest.mark.parametrize("written", ["revoked", "torn"])
def test_a_slot_overwritten_while_another_attempt_had_it_comes_back(presence: Presence, written: str) -> None:
    slot = presence.take_slot(7, 1)
    presence.give_slot(slot, 7, 1)
    assert presence.take_slot(8, 1) == slot
    if written == "revoked":
        presence.recorder._write(slot, SlotState(7, 1, Phase.REVOKED, False))
    else:
        presence.recorder._map[offset(slot)] ^= 1
    assert not presence.recorder.enter(slot, 8, 1, None)  # the safe direction
    presence.give_slot(slot, 8, 1)
    assert presence.free_slots == 1
    assert presence.take_slot(9, 1) == slot


def test_a_slot_is_given_back_once_and_by_its_own_attempt(presence: Presence) -> None:
    slot = presence.take_slot(7, 1)
    presence.give_slot(slot, 7, 2)
    assert presence.free_slots == 0
    presence.give_slot(slot, 7, 1)
    presence.give_slot(slot, 7, 1)
    assert presence.free_slots == 1
    assert presence.take_slot(8, 1) == slot
    with pytest.raises(LedgerUnavailableError, match="no slot"):
        presence.take_slot(9, 1)
