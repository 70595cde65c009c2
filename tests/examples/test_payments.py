"""The payments example is counted at the destination: what localstripe holds, not what the example prints."""

import base64
import contextlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "payments"
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("localstripe") is None or importlib.util.find_spec("stripe") is None,
        reason="NOT TESTED: the payments example needs localstripe and stripe. Install them: pip install -e '.[test]'",
    ),
    # localstripe keeps one file in /tmp whatever its port: two of them at a time would write over each other.
    pytest.mark.xdist_group("localstripe"),
]


@pytest.fixture
def localstripe() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "localstripe", "--port", str(port), "--from-scratch"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def listens() -> bool:
        assert server.poll() is None, "localstripe ended before it was ready"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        eventually(listens, seconds=30)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def refunds(url: str) -> list[dict[str, Any]]:
    """Read over bare HTTP: neither the example's code nor the official client is believed."""
    login = base64.b64encode(b"sk_test_example:").decode()
    request = urllib.request.Request(url + "/v1/refunds?limit=100", headers={"Authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        listed: list[dict[str, Any]] = json.load(answer)["data"]
    return listed


def run_example(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*(str(ROOT / floor) for floor in ("lib", "worker", "cli"))])}
    return subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), "--stripe", url, *options], env=environment, capture_output=True, text=True, timeout=110
    )


@pytest.mark.promise("P84")
def test_one_refund_per_order_whichever_answer_was_lost(localstripe: str) -> None:
    ended = run_example(localstripe)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    made = refunds(localstripe)
    assert sorted(refund["metadata"]["operation_id"] for refund in made) == [f"order:{n}:refund" for n in (1001, 1002, 1003, 1004)]
    assert {refund["amount"] for refund in made} == {4200}
    rows = re.findall(r"^(\d{4}) +(\w+) +(\w+) +(\w+) +(\d+) +(\d+)$", ended.stdout, re.MULTILINE)
    assert rows == [
        ("1001", "nothing", "confirmed", "CONFIRMED", "1", "1"),
        ("1002", "drop_after", "confirmed", "CONFIRMED", "1", "1"),
        ("1003", "hang_after", "confirmed", "CONFIRMED", "1", "1"),
        ("1004", "drop_before", "confirmed", "CONFIRMED", "2", "1"),
    ]


@pytest.mark.promise("P84")
def test_the_example_fails_when_the_provider_itself_refunds_twice(localstripe: str) -> None:
    ended = run_example(localstripe, "--provider-commits-twice")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    made = [refund["metadata"]["operation_id"] for refund in refunds(localstripe)]
    assert made.count("order:1001:refund") == 2
    assert "NOT every order was refunded one time" in ended.stdout
