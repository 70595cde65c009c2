"""The endpoint bears whatever a client does, within its limits, and is for this machine alone."""

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from settled.clock import SystemClock
from settled.config.endpoint import HttpSettings, MetricsSettings
from settled.core.errors import ConfigurationError
from settled.core.limits import Limits
from settled_worker.watching.answer import Answer, plain
from settled_worker.watching.endpoint import Endpoint
from tests.conftest import eventually
from tests.worker.watching.asking import connect, drain, free_port, get, say, sock

LIMITS = Limits(http_seconds=1.5, http_connections_max=3)
MakeEndpoint = Callable[..., Endpoint]


@pytest.fixture
def endpoint() -> Iterator[MakeEndpoint]:
    made: list[Endpoint] = []

    def make(listen: str, limits: Limits = LIMITS, **pages: Any) -> Endpoint:
        all_pages = {"/healthz": lambda: plain(True, "fine"), **{f"/{name}": page for name, page in pages.items()}}
        made.append(Endpoint(listen, all_pages, SystemClock(), limits))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_pages_are_answered_and_the_connection_ends(endpoint: MakeEndpoint, tmp_path: Path, where: str) -> None:
    listen = f"127.0.0.1:{free_port()}" if where == "tcp" else sock(tmp_path)
    endpoint(listen, bad=lambda: plain(False, "ill"))
    assert get(listen, "/healthz") == (200, "fine\n")
    assert get(listen, "/healthz?x=1") == (200, "fine\n")
    assert get(listen, "/bad") == (503, "ill\n")
    assert get(listen, "/etc/passwd") == (404, "there are /bad /healthz\n")
    assert say(listen, b"POST /healthz HTTP/1.0\r\nContent-Length: 9\r\n\r\n").startswith(b"HTTP/1.0 501 ")
    head = say(listen, b"HEAD /healthz HTTP/1.0\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 ") and head.endswith(b"\r\n\r\n")


def test_a_socket_is_for_its_group_and_goes_with_its_worker(endpoint: MakeEndpoint, tmp_path: Path) -> None:
    first = endpoint(sock(tmp_path))
    path = tmp_path / "http.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    first.close()
    assert not path.exists()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()  # what a kill leaves: a file that nobody listens at
    endpoint(sock(tmp_path))
    assert get(sock(tmp_path), "/healthz")[0] == 200


def test_a_file_that_is_no_socket_is_never_removed(endpoint: MakeEndpoint, tmp_path: Path) -> None:
    (tmp_path / "http.sock").write_text("precious")
    with pytest.raises(ConfigurationError, match="no socket"):
        endpoint(sock(tmp_path))
    assert (tmp_path / "http.sock").read_text() == "precious"
    with pytest.raises(ConfigurationError, match="cannot be listened at"):
        endpoint(f"unix:{tmp_path}/missing/http.sock")


@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_an_address_that_is_taken_is_tried_again(
    endpoint: MakeEndpoint, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("settled_worker.watching.endpoint._AGAIN_SECONDS", 0.1)
    listen = f"127.0.0.1:{free_port()}" if where == "tcp" else sock(tmp_path)
    first = endpoint(listen, who=lambda: plain(True, "first"))
    endpoint(listen, who=lambda: plain(True, "second"))
    assert get(listen, "/who") == (200, "first\n")
    first.close()
    eventually(lambda: get(listen, "/who") == (200, "second\n"))


def test_a_slow_client_is_cut_off_however_busy_it_keeps_its_line(endpoint: MakeEndpoint, tmp_path: Path) -> None:
    endpoint(sock(tmp_path))
    stop = threading.Event()
    with connect(sock(tmp_path)) as slow:

        def drip() -> None:
            while not stop.wait(0.05):
                try:
                    slow.sendall(b"G")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert drain(slow) == b""  # ends by itself, or the socket's own time limit fails the test
        finally:
            stop.set()
            dripping.join()


def threads_since() -> Callable[[], int]:
    """Return a look at how many answers are under way that were not before; what an earlier test left may end meanwhile."""
    before = set(threading.enumerate())
    return lambda: sum(one.name.endswith("http-answer") for one in threading.enumerate() if one not in before)


def test_a_client_that_does_not_read_is_cut_off(endpoint: MakeEndpoint, tmp_path: Path) -> None:
    answering = threads_since()
    endpoint(sock(tmp_path), big=lambda: Answer(200, "text/plain", b"x" * 50_000_000))
    with connect(sock(tmp_path)) as deaf:
        deaf.sendall(b"GET /big HTTP/1.0\r\n\r\n")
        eventually(lambda: answering() == 1)
        eventually(lambda: answering() == 0, seconds=20)


def test_who_is_one_too_many_is_turned_away_and_let_in_later(endpoint: MakeEndpoint, tmp_path: Path) -> None:
    endpoint(sock(tmp_path), Limits(http_seconds=60, http_connections_max=3))
    answering = threads_since()
    held = [connect(sock(tmp_path)) for _ in range(3)]
    eventually(lambda: answering() == 3)
    assert get(sock(tmp_path), "/healthz") == (0, "")
    assert answering() == 3
    for one in held:
        one.close()
    eventually(lambda: get(sock(tmp_path), "/healthz") == (200, "fine\n"))


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /healthz HTTP/1.0\r\nX: " + b"x" * 20_000,
        b"A" * 1_000_000,
        b"GET /" + b"a" * 60_000 + b" HTTP/1.0\r\n\r\n",
    ],
    ids=["header", "garbage", "path"],
)
def test_a_request_that_is_too_long_is_refused(endpoint: MakeEndpoint, tmp_path: Path, request_: bytes) -> None:
    endpoint(sock(tmp_path))
    with connect(sock(tmp_path)) as one:
        try:
            one.sendall(request_)
        except ConnectionError:
            return
        assert b" 200 " not in drain(one)[:20]
    assert get(sock(tmp_path), "/healthz")[0] == 200


NONSENSE = [b"\x16\x03\x01\x02\x00\n\n", b"\r\n\r\n", b"GET\n\n", b"GET / HTTP/9.9\r\n\r\n", b"", b"\0" * 50 + b"\n\n"]


@pytest.mark.parametrize("request_", NONSENSE)
def test_nonsense_is_answered_or_dropped_and_hurts_nobody(endpoint: MakeEndpoint, tmp_path: Path, request_: bytes) -> None:
    endpoint(sock(tmp_path), fails=lambda: 1 / 0)
    with connect(sock(tmp_path)) as one:
        one.sendall(request_)
        one.shutdown(socket.SHUT_WR)
        drain(one)
    assert get(sock(tmp_path), "/fails") == (0, "")
    assert get(sock(tmp_path), "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("0.0.0.0:9108", "not this machine alone"),
        ("192.168.0.4:9108", "not this machine alone"),
        ("[::]:9108", "not this machine alone"),
        ("example.org:9108", "not this machine alone"),
        ("127.0.0.1:0", "must be 127.0.0.1:PORT"),
        ("127.0.0.1:99999", "must be 127.0.0.1:PORT"),
        ("9108", "must be 127.0.0.1:PORT"),
        ("", "must be 127.0.0.1:PORT"),
        ("unix:http.sock", "absolute path"),
        ("unix:/tmp/", "absolute path"),
        ("unix:/" + "x" * 200, "more than 107 bytes"),
    ],
)
def test_an_address_that_others_could_reach_is_refused(listen: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        HttpSettings(listen=listen)


def test_loopback_is_taken_by_each_of_its_names() -> None:
    for listen in ("127.0.0.1:9108", "127.9.9.9:1", "[::1]:9108", "localhost:9108", "unix:/run/settled/main/http.sock"):
        assert HttpSettings(listen=listen).listen == listen
    with pytest.raises(ValueError, match="needs listen"):
        HttpSettings(metrics=True)
    for path in ("settled.prom", "/x/settled.txt", "/x/\0.prom"):
        with pytest.raises(ValueError, match="absolute path"):
            MetricsSettings(textfile=path)
    assert os.path.isabs(MetricsSettings(textfile="/x/settled.prom").textfile or "")
