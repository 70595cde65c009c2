"""What may be said of the time between two moments, whatever the clocks did."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

from settled.core.moment import SECOND_US, Moment, possibly_elapsed_us, surely_elapsed_us, utc_us
from tests.lib.core.builders import DAY, at

T0 = at(0)


def later(seconds: float, *, wall_step_seconds: float = 0) -> Moment:
    now = at(seconds)
    return now._replace(wall_us=now.wall_us + round(wall_step_seconds * SECOND_US))


@pytest.mark.promise("S110")
@pytest.mark.parametrize(
    ("now", "seconds"),
    [
        (later(5), 5),
        (later(5, wall_step_seconds=DAY), 5),  # the clock set forward proves nothing
        (later(61, wall_step_seconds=-DAY), 61),  # nor does it take anything away when set back
        (later(605), 605),  # ten of these minutes suspended: the boot clock counts them
        (Moment(T0.wall_us + DAY * SECOND_US, 40 * SECOND_US, "boot-2"), 40),  # only the time since the boot
        (Moment(T0.wall_us - DAY * SECOND_US, 40 * SECOND_US, "boot-2"), 40),
        (T0, 0),
        (Moment(T0.wall_us, T0.boot_us - 1, T0.boot_id), 0),
    ],
)
def test_a_horizon_counts_the_least_time_that_surely_passed(now: Moment, seconds: int) -> None:
    assert surely_elapsed_us(T0, now) == seconds * SECOND_US


@pytest.mark.promise("S112")
@pytest.mark.parametrize(
    ("now", "highest", "seconds"),
    [
        (later(5), T0, 5),
        (T0, T0, 0),
        (later(DAY, wall_step_seconds=-7200), T0, DAY),  # set back after it ended: the boot clock knows better
        (later(5, wall_step_seconds=DAY), T0, 5),
        (Moment(T0.wall_us + 90 * SECOND_US, 10, "boot-2"), T0, 90),  # across a boot only the wall clock tells
        (Moment(T0.wall_us + 90 * SECOND_US, 10, "boot-2"), later(90), 90),
        (Moment(T0.wall_us + 90 * SECOND_US, 10, "boot-2"), later(91), None),  # below the highest ever stored: it was set back
        (Moment(T0.wall_us + 90 * SECOND_US, 4000 * SECOND_US, "boot-2"), later(90), 4000),  # set back, but up for longer than that
        (Moment(T0.wall_us - 1, 10, "boot-2"), Moment(0, 0, ""), None),
    ],
)
def test_a_window_counts_the_most_time_that_may_have_passed(now: Moment, highest: Moment, seconds: int | None) -> None:
    expected = None if seconds is None else seconds * SECOND_US
    assert possibly_elapsed_us(T0, now, highest.wall_us) == expected


class Nowhere(tzinfo):
    """A zone that does not know how far it is from UTC."""

    def utcoffset(self, _: object) -> None:
        return None

    def __repr__(self) -> str:
        return "nowhere"


def test_a_datetime_with_a_zone_is_microseconds_in_utc_and_any_other_is_refused_by_name() -> None:
    summer = timezone(timedelta(hours=2))
    assert utc_us(datetime(1970, 1, 1, 2, 0, 1, 5, tzinfo=summer), "deadline", "Nothing was stored.") == 1_000_005
    assert utc_us(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "deadline", "") == 253_402_300_799_999_999
    refused = {
        "tomorrow": "deadline must be an aware datetime, not 'tomorrow'. Nothing was stored.",
        datetime(2027, 1, 1): (  # noqa: DTZ001 - the case under test
            "deadline must be an aware datetime: datetime.datetime(2027, 1, 1, 0, 0) says no zone. Nothing was stored."
        ),
        datetime(2028, 1, 1, tzinfo=Nowhere()): (
            "deadline must be an aware datetime: datetime.datetime(2028, 1, 1, 0, 0, tzinfo=nowhere) says no zone. Nothing was stored."
        ),
        datetime(1, 1, 1, tzinfo=summer): "deadline 0001-01-01T00:00:00+02:00 is outside the years 1 to 9999 in UTC. Nothing was stored.",
    }
    for value, said in refused.items():
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            utc_us(value, "deadline", "Nothing was stored.")
