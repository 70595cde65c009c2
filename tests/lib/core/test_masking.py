"""What contracts call sensitive is masked at any depth, and its values wherever they stand in texts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from settled.core.masking import NO_MASK, mask_of
from settled.core.text import MASK, one_line

SECRET = "4242 4242 4242 4242"


def test_without_sensitive_fields_everything_stays_as_it_is() -> None:
    assert mask_of((), json.dumps({"card": SECRET})) is NO_MASK
    assert NO_MASK.of({"card": SECRET}) == {"card": SECRET}


@pytest.mark.promise("S129", part="one pure function masks fields and their values")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"card": SECRET}, {"card": MASK}),
        ({"Card": 7}, {"Card": MASK}),
        ({"card": {"number": SECRET}}, {"card": MASK}),
        ({"a": [{"card": None}, {"b": (1, SECRET)}]}, {"a": [{"card": MASK}, {"b": (1, MASK)}]}),
        ({"note": f"charged {SECRET} twice"}, {"note": f"charged {MASK} twice"}),
        (SECRET, MASK),
        (True, True),
    ],
)
def test_fields_and_their_values_are_masked(value: Any, shown: Any) -> None:
    mask = mask_of(("card",), json.dumps({"card": SECRET, "other": "free"}), None)
    assert mask.of(value) == shown


def test_a_dotted_name_is_taken_by_its_last_part_and_short_values_are_left_in_texts() -> None:
    mask = mask_of(("customer.pin",), json.dumps({"customer": {"pin": "12"}}))
    assert mask.of({"pin": "12", "text": "12 items"}) == {"pin": MASK, "text": "12 items"}


def test_numbers_and_nested_values_under_a_sensitive_name_are_known_in_texts() -> None:
    mask = mask_of(("account",), json.dumps({"account": {"iban": "DE8937040044", "id": 90210}}))
    assert mask.text("no account DE8937040044 (90210)") == f"no account {MASK} ({MASK})"


@given(before=st.text("abc ", max_size=30), cut=st.integers(8, 60))
def test_half_a_value_at_a_cut_end_is_masked_too(before: str, cut: int) -> None:
    shown = mask_of(("card",), json.dumps({"card": "SECRETVALUE99"})).text(one_line(before + " SECRETVALUE99 and more", cut))
    assert "SECR" not in shown
