"""The shop of the demo is a process of its own: its faults are counted from outside, its memory outlives kill -9."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from settled import EffectRejected, NotSent
from settled_cli.demo import client
from settled_cli.demo.launch import RunningShop, running_shop
from tests.conftest import eventually


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "shop" / "charges.jsonl"


@pytest.fixture
def shop(ledger: Path) -> Iterator[RunningShop]:
    with running_shop(ledger) as running:
        yield running


def pay(url: str, reference: str = "INV-1", *, amount_cents: int = 500, key: str | None = None, timeout: float = 10.0) -> dict[str, object]:
    return client.charge(
        url, reference=reference, amount_cents=amount_cents, currency="eur", idempotency_key=key, timeout=timeout
    )


def charged(url: str, reference: str = "INV-1") -> int:
    return client.counts(url)["charges"].get(reference, 0)


def lines(ledger: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in ledger.read_text().splitlines()]


def test_a_charge_is_answered_found_and_counted_by_service_and_file_alike(shop: RunningShop, ledger: Path) -> None:
    made = pay(shop.url)
    assert made == {"charge_id": "ch_000001", "reference": "INV-1", "amount_cents": 500, "currency": "eur", "status": "captured"}
    assert client.find(shop.url, "INV-1") == {"reference": "INV-1", "charges": [made], "pending": 0, "complete": True}
    assert client.find(shop.url, "INV-2")["charges"] == []
    assert client.counts(shop.url) == {"charges": {"INV-1": 1}, "calls": {"INV-1": 1}}
    assert [line["reference"] for line in lines(ledger)] == ["INV-1"]


def test_committed_charges_survive_kill_9_and_the_next_process_counts_them(ledger: Path) -> None:
    with running_shop(ledger) as first:
        pay(first.url)
        client.arm(first.url, "INV-2", "lose_answer")
        with pytest.raises(RemoteDisconnected):
            pay(first.url, "INV-2")
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
    assert [line["reference"] for line in lines(ledger)] == ["INV-1", "INV-2"]
    with running_shop(ledger) as second:
        assert client.counts(second.url) == {"charges": {"INV-1": 1, "INV-2": 1}, "calls": {}}
        assert pay(second.url, "INV-3")["charge_id"] == "ch_000003"


def test_an_accepted_charge_that_was_not_committed_dies_with_the_process(ledger: Path) -> None:
    with running_shop(ledger) as first:
        client.arm(first.url, "INV-1", "commit_late", seconds=3600)
        with pytest.raises(RemoteDisconnected):
            pay(first.url)
        assert client.find(first.url, "INV-1")["pending"] == 1
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
    with running_shop(ledger) as second:
        assert client.find(second.url, "INV-1") == {"reference": "INV-1", "charges": [], "pending": 0, "complete": True}


def test_a_half_written_line_was_never_committed_and_swallows_no_later_charge(ledger: Path) -> None:
    with running_shop(ledger) as first:
        pay(first.url)
    with ledger.open("ab") as file:
        file.write(b'{"charge_id": "ch_0000')
    with running_shop(ledger) as second:
        pay(second.url, "INV-2")
        assert client.counts(second.url)["charges"] == {"INV-1": 1, "INV-2": 1}
    assert [line["charge_id"] for line in lines(ledger)] == ["ch_000001", "ch_000002"]


@pytest.mark.parametrize(
    ("mode", "seconds", "error", "committed"),
    [
        ("lose_answer", 0, RemoteDisconnected, 1),
        ("fail_before", 0, RemoteDisconnected, 0),
        ("hang_after", 3600, TimeoutError, 1),
        ("error_after", 0, client.ShopError, 1),
        ("reject", 0, EffectRejected, 0),
    ],
)
def test_a_fault_shows_one_error_and_one_truth_and_hits_once(
    shop: RunningShop, mode: str, seconds: float, error: type[Exception], committed: int
) -> None:
    client.arm(shop.url, "INV-1", mode, seconds=seconds)
    pay(shop.url, "another")
    with pytest.raises(error) as caught:
        pay(shop.url, timeout=0.5)
    assert type(caught.value) is error
    assert charged(shop.url) == committed
    assert client.find(shop.url, "INV-1")["pending"] == 0
    pay(shop.url)
    assert client.counts(shop.url) == {"charges": {"another": 1, "INV-1": committed + 1}, "calls": {"another": 1, "INV-1": 2}}


def test_a_late_commit_is_pending_until_it_is_made(shop: RunningShop) -> None:
    client.arm(shop.url, "INV-1", "commit_late", seconds=2)
    with pytest.raises(RemoteDisconnected):
        pay(shop.url)
    between = client.find(shop.url, "INV-1")
    assert (between["charges"], between["pending"]) == ([], 1)
    client.wait_until(shop.url, "INV-1", "committed")
    after = client.find(shop.url, "INV-1")
    assert (len(after["charges"]), after["pending"]) == (1, 0)


def test_a_stale_read_hides_a_charge_that_was_made_and_later_shows_it(shop: RunningShop) -> None:
    client.arm(shop.url, "INV-1", "stale_reads", seconds=2, lose_answer=True)
    with pytest.raises(RemoteDisconnected):
        pay(shop.url)
    assert charged(shop.url) == 1
    assert client.find(shop.url, "INV-1") == {"reference": "INV-1", "charges": [], "pending": 0, "complete": True}
    eventually(lambda: client.find(shop.url, "INV-1")["charges"])


def test_a_provider_that_commits_twice_is_counted_twice_whatever_the_key_says(ledger: Path) -> None:
    with running_shop(ledger, idempotent=True) as shop:
        pay(shop.url, key="K")
        client.arm(shop.url, "INV-1", "twice")
        pay(shop.url, key="K")
        assert charged(shop.url) == 3
    assert len(lines(ledger)) == 3


def test_without_the_flag_one_key_makes_two_charges(shop: RunningShop) -> None:
    assert pay(shop.url, key="K") != pay(shop.url, key="K")
    assert charged(shop.url) == 2


def test_with_the_flag_one_key_makes_one_charge_also_after_kill_9_and_under_a_crowd(ledger: Path) -> None:
    with running_shop(ledger, idempotent=True) as first:
        client.arm(first.url, "INV-1", "lose_answer")
        with pytest.raises(RemoteDisconnected):
            pay(first.url, key="K")
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
    with running_shop(ledger, idempotent=True) as second:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: pay(second.url, key="K"), range(16)))
        assert {(answer["charge_id"], answer["replayed"]) for answer in answers} == {("ch_000001", True)}
        assert client.counts(second.url) == {"charges": {"INV-1": 1}, "calls": {"INV-1": 16}}
        with pytest.raises(client.ShopError) as conflict:
            pay(second.url, key="K", amount_cents=501)
        assert conflict.value.status == 409
        assert charged(second.url) == 1


def test_a_caller_can_be_killed_exactly_between_the_commit_and_its_acknowledgement(shop: RunningShop) -> None:
    client.arm(shop.url, "INV-1", "hang_after", seconds=3600)
    code = f"""
from settled_cli.demo import client
client.charge({shop.url!r}, reference="INV-1", amount_cents=1, currency="eur", timeout=60)
print("answered")
"""
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    client.wait_until(shop.url, "INV-1", "committed", timeout=30)
    assert caller.poll() is None
    caller.kill()
    assert caller.communicate()[0] == b""
    assert client.counts(shop.url) == {"charges": {"INV-1": 1}, "calls": {"INV-1": 1}}


def test_waiting_for_what_does_not_come_ends_in_time_and_says_so(shop: RunningShop) -> None:
    client.arm(shop.url, "INV-1", "fail_before")
    with pytest.raises(RemoteDisconnected):
        pay(shop.url)
    client.wait_until(shop.url, "INV-1", "received")
    with pytest.raises(TimeoutError, match="has not committed 1 of 'INV-1'"):
        client.wait_until(shop.url, "INV-1", "committed", timeout=0.1)
    with pytest.raises(TimeoutError):
        client.wait_until(shop.url, "INV-1", "received", count=2, timeout=0.1)


def test_a_refused_connection_is_known_not_to_have_been_sent(ledger: Path) -> None:
    with running_shop(ledger) as shop:
        url = shop.url
    with pytest.raises(NotSent, match="refused"):
        pay(url)


def call(url: str, method: str, target: str, content: str | None) -> int:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request(method, target, content)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "target", "content", "status"),
    [
        ("POST", "/charges", "{", 400),
        ("POST", "/charges", "[]", 400),
        ("POST", "/charges", '{"reference": "A", "amount_cents": true, "currency": "eur"}', 400),
        ("POST", "/charges", '{"reference": "", "amount_cents": 1, "currency": "eur"}', 400),
        ("POST", "/charges", '{"reference": "A", "amount_cents": 0, "currency": "eur"}', 400),
        ("POST", "/charges", " " * 65537, 400),
        ("POST", "/__fault", '{"reference": "A", "mode": "explode"}', 400),
        ("POST", "/__fault", '{"reference": "A", "mode": ["reject"]}', 400),
        ("POST", "/__fault", '{"reference": "A", "mode": "hang_after"}', 400),
        ("POST", "/__fault", '{"reference": "A", "mode": "commit_late", "seconds": NaN}', 400),
        ("GET", "/charges", None, 400),
        ("GET", "/__wait?reference=A&state=done", None, 400),
        ("GET", "/__wait?reference=A&state=received&timeout=nan", None, 400),
        ("GET", "/elsewhere", None, 404),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_nothing_is_charged(
    shop: RunningShop, method: str, target: str, content: str | None, status: int
) -> None:
    assert call(shop.url, method, target, content) == status
    assert client.counts(shop.url) == {"charges": {}, "calls": {}}


def test_a_second_shop_and_a_file_that_is_no_ledger_are_refused_in_one_sentence(shop: RunningShop, ledger: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("not a charge\n")
    for path, words in ((ledger, "another shop uses"), (other, "line 1 of")):
        ended = subprocess.run(
            [sys.executable, "-m", "settled_cli.demo.shop", "--ledger", str(path)], capture_output=True, text=True, timeout=30
        )
        assert (ended.returncode, ended.stdout) == (1, "")
        assert words in ended.stderr and "Traceback" not in ended.stderr
    assert other.read_text() == "not a charge\n"


def answers(url: str) -> bool:
    try:
        client.counts(url)
    except (NotSent, OSError):
        return False
    return True


def test_the_shop_ends_with_whoever_started_it_even_by_kill_9(ledger: Path) -> None:
    code = (
        "import sys, os, pathlib\nfrom settled_cli.demo.launch import running_shop\n"
        f"with running_shop(pathlib.Path({str(ledger)!r})) as shop:\n"
        "    print(shop.url, flush=True); sys.stdin.read()\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None and starter.stdin is not None
    url = starter.stdout.readline().strip()
    assert client.counts(url)["charges"] == {}
    starter.kill()
    starter.wait()
    eventually(lambda: not answers(url))
    starter.stdin.close()
    starter.stdout.close()
