"""The fake provider over real HTTP, in a thread or in a process of its own, and a client for it.

    python -m settled.testing.http [--file FILE] [--idempotent] [--key-window S] [--port N] [--end-with-stdin]

Prints {"url": …} on one line when it is ready. What was committed is in FILE whatever becomes of the process; what was accepted
and not committed dies with it.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from settled.testing.provider import AnswerLost, AnswerMalformed, Committed, FakeProvider, Page, ProviderError, ProviderRejected

BODY_BYTES_MAX: Final = 64 * 1024
READY_SECONDS: Final = 20.0
_END_SECONDS: Final = 5.0


class ProviderClient:
    """Call a provider over HTTP with the methods of FakeProvider. Repeats nothing and asks no proxy. `timeout` in seconds."""

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        self.url, self._timeout = url, timeout

    def create(self, request: Mapping[str, Any], *, reference: str, idempotency_key: str | None = None) -> dict[str, Any]:
        """Do the effect. Raises ConnectionRefusedError and ProviderRejected, which prove that nothing was done, or what went wrong."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        status, body = self._call("POST", "/effects", {"reference": reference, "request": dict(request)}, headers)
        if status == 402:
            raise ProviderRejected(str(body.get("error", "declined")))
        return self._accepted(status, body)

    def find(self, reference: str, *, page: int = 1) -> Page:
        """Search by reference."""
        body = self._get("/effects", reference=reference, page=page)
        return Page(body["found"], body["more"])

    def control(self, beside: str) -> bool:
        """Positive control through the search that serves `beside`."""
        return bool(self._get("/control", reference=beside)["found"])

    def in_flight(self, reference: str) -> int:
        """In-flight fence."""
        return int(self._get("/in-flight", reference=reference)["undecided"])

    def fail_next(self, fault: str, *, reference: str | None = None, seconds: float = 0.0, hold_seconds: float = 0.0) -> None:
        """Arm a fault for the next call."""
        self._post("/__faults", {"fault": fault, "reference": reference, "seconds": seconds, "hold_seconds": hold_seconds})

    def fail_reads(self, fault: str, *, reference: str | None = None, seconds: float = 0.0) -> None:
        """Let reads fail from now on."""
        self._post("/__reads", {"fault": fault, "reference": reference, "seconds": seconds})

    def truth(self) -> dict[str, Any]:
        """Return {"effects": {reference: count}, "calls": {reference: count}, "undecided": n}, whatever readers are shown."""
        return self._get("/__truth")

    def count(self, reference: str) -> int:
        """Count what was really committed."""
        return int(self.truth()["effects"].get(reference, 0))

    def calls(self, reference: str) -> int:
        """Count the requests that arrived."""
        return int(self.truth()["calls"].get(reference, 0))

    def wait(self, reference: str, what: str, *, count: int = 1, timeout: float = 10.0) -> bool:
        """Block until `count` requests were `received` or effects `committed`; False if time ran out first."""
        query = {"reference": reference, "what": what, "count": count, "timeout": timeout}
        status, body = self._call("GET", "/__wait?" + urlencode(query), timeout=timeout + 5.0)
        return bool(self._accepted(status, body)["reached"])

    def _get(self, path: str, **query: Any) -> dict[str, Any]:
        return self._accepted(*self._call("GET", path + "?" + urlencode(query)))

    def _post(self, path: str, body: Mapping[str, Any]) -> None:
        self._accepted(*self._call("POST", path, body))

    def _call(
        self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> tuple[int, dict[str, Any]]:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=timeout or self._timeout)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, target, content, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            try:
                answer = json.loads(text)
            except ValueError:
                raise AnswerMalformed(f"the answer is not JSON: {text[:40]!r}") from None
            return response.status, answer
        finally:
            connection.close()

    @staticmethod
    def _accepted(status: int, body: dict[str, Any]) -> dict[str, Any]:
        if not 200 <= status < 300:
            raise ProviderError(status, str(body.get("error", body)))
        return body


class _Refused(Exception):
    """The request makes no sense; nothing was done with it."""


class ProviderServer(ThreadingHTTPServer):
    """Serves one FakeProvider on loopback. `provider` is the truth."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, provider: FakeProvider, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.provider = provider
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is what this is for: no traceback."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request per connection (HTTP/1.0), so that returning without an answer cuts it."""

    server: ProviderServer
    timeout = 30

    def do_GET(self) -> None:
        self._guarded(self._get)

    def do_POST(self) -> None:
        self._guarded(self._post)

    def _guarded(self, respond: Any) -> None:
        try:
            respond()
        except AnswerLost:
            return  # without an answer the connection is cut
        except AnswerMalformed:
            self._say(200, b'{"effect_id": "fx_')
        except ProviderRejected as refusal:
            self._answer(402, {"error": str(refusal)})
        except ProviderError as error:
            self._answer(error.status, {"error": str(error)})
        except ConnectionRefusedError:
            return
        except ConnectionError as error:
            self._answer(503, {"error": str(error)})
        except (_Refused, ValueError, TypeError) as error:
            self._answer(400, {"error": str(error)})

    def _get(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        provider = self.server.provider
        match address.path:
            case "/effects":
                page = provider.find(_text(query, "reference"), page=int(query.get("page", 1)))
                self._answer(200, {"found": page.found, "more": page.more})
            case "/control":
                self._answer(200, {"found": provider.control(_text(query, "reference"))})
            case "/in-flight":
                self._answer(200, {"undecided": provider.in_flight(_text(query, "reference"))})
            case "/__truth":
                self._answer(200, truth(provider))
            case "/__wait":
                what = query.get("what")
                if what not in ("received", "committed"):
                    raise _Refused("what must be received or committed")
                reached = provider.wait(_text(query, "reference"), what, int(query.get("count", 1)), float(query.get("timeout", 10)))
                self._answer(200, {"reached": reached})
            case other:
                self._answer(404, {"error": f"nothing is at {other}"})

    def _post(self) -> None:
        body, provider = self._body(), self.server.provider
        match urlsplit(self.path).path:
            case "/effects":
                request = body.get("request")
                if not isinstance(request, dict):
                    raise _Refused("request must be a map")
                reference, key = _text(body, "reference"), self.headers.get("Idempotency-Key")
                self._answer(201, provider.create(request, reference=reference, idempotency_key=key))
            case "/__faults":
                waits = {"seconds": body.get("seconds", 0.0), "hold_seconds": body.get("hold_seconds", 0.0)}
                provider.fail_next(_text(body, "fault"), reference=body.get("reference"), **waits)
                self._answer(200, {})
            case "/__reads":
                provider.fail_reads(_text(body, "fault"), reference=body.get("reference"), seconds=body.get("seconds", 0.0))
                self._answer(200, {})
            case other:
                self._answer(404, {"error": f"nothing is at {other}"})

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > BODY_BYTES_MAX:
            raise _Refused(f"Content-Length must be a number up to {BODY_BYTES_MAX}")
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise AnswerLost("the caller went away in the middle of its request")
        body = json.loads(content)
        if not isinstance(body, dict):
            raise _Refused("the body must be a JSON object")
        return body

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        self._say(status, json.dumps(body).encode())

    def _say(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Standard error stays for what went wrong."""


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise _Refused(f"{name} must be a text")
    return value


def truth(provider: FakeProvider) -> dict[str, Any]:
    """Return what was really committed and how many requests arrived, by reference, and how many are undecided."""
    effects: dict[str, int] = {}
    for one in provider.effects:
        effects[one.reference] = effects.get(one.reference, 0) + 1
    return {"effects": effects, "calls": provider.calls_by_reference(), "undecided": provider.undecided}


@contextlib.contextmanager
def serving(provider: FakeProvider | None = None, *, port: int = 0, **options: Any) -> Iterator[ProviderServer]:
    """Serve a provider from threads of this process while the block runs; `options` are FakeProvider's."""
    server = ProviderServer(provider or FakeProvider(**{"sleep": time.sleep, **options}), port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="fake-provider", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class RunningProvider(NamedTuple):
    """A provider in a process of its own."""

    url: str
    process: subprocess.Popen[str]

    @property
    def client(self) -> ProviderClient:
        """A client for it."""
        return ProviderClient(self.url)


@contextlib.contextmanager
def running_provider(*, file: Path | None = None, idempotent: bool = False, key_window: float | None = None) -> Iterator[RunningProvider]:
    """Run a provider in a process of its own, which ends with the block or with this process. Raises RuntimeError if it does not start."""
    command = [sys.executable, "-m", "settled.testing.http", "--end-with-stdin"]
    command += [] if file is None else ["--file", str(file)]
    command += ["--idempotent"] if idempotent else []
    command += [] if key_window is None else ["--key-window", str(key_window)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        ready = select.select([process.stdout], [], [], READY_SECONDS)[0]
        line = process.stdout.readline() if ready else ""
        if not line:
            raise RuntimeError("the fake provider did not start; its own words are on standard error")
        yield RunningProvider(str(json.loads(line)["url"]), process)
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def read_file(descriptor: int) -> tuple[Committed, ...]:
    """Read committed effects, one line each; an unfinished last line was never committed and is cut off."""
    with open(os.dup(descriptor), "rb") as file:
        content = file.read()
    whole, _, rest = content.rpartition(b"\n")
    if rest:
        os.ftruncate(descriptor, len(content) - len(rest))
    return tuple(Committed(**json.loads(line)) for line in whole.splitlines())


def _kept_in(descriptor: int) -> Any:
    def keep(effect: Committed) -> None:
        line = json.dumps(effect._asdict()).encode() + b"\n"
        if os.write(descriptor, line) != len(line):
            raise OSError("the file of effects took only a part of a line")
        os.fsync(descriptor)

    return keep


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: list[str] | None = None) -> int:
    """Be the process."""
    parser = argparse.ArgumentParser(prog="python -m settled.testing.http", description="A payment provider that fails on request.")
    parser.add_argument("--file", type=Path, help="append-only JSON lines, one per committed effect")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one")
    parser.add_argument("--idempotent", action="store_true", help="the same Idempotency-Key makes one effect")
    parser.add_argument("--key-window", type=float, metavar="SECONDS", help="how long a key is remembered; default for ever")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when standard input does, so that no orphan stays")
    options = parser.parse_args(arguments)
    kept: dict[str, Any] = {}
    try:
        if options.file is not None:
            options.file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(options.file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            kept = {"committed": read_file(descriptor), "on_commit": _kept_in(descriptor)}
        provider = FakeProvider(idempotent=options.idempotent, key_window=options.key_window, sleep=time.sleep, **kept)
        server = ProviderServer(provider, options.port)
    except (OSError, ValueError, TypeError) as error:
        print(f"fake provider: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    print(json.dumps({"url": server.url}), flush=True)
    if options.end_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    threading.Thread(target=_keep_time, args=(provider,), daemon=True).start()
    server.serve_forever(poll_interval=0.1)
    return 0


def _keep_time(provider: FakeProvider) -> None:
    """Commit what is due also when nobody asks."""
    while True:
        time.sleep(0.02)
        _ = provider.undecided


if __name__ == "__main__":
    sys.exit(main())
