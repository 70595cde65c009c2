"""Stand between the worker and Stripe, and lose what is told to be lost.

    python proxy.py UPSTREAM [--port N]        prints {"url": …} on one line when it is ready

POST /__fault {"match": TEXT, "mode": M, "seconds": S} arms one fault for the next POST whose body holds TEXT:
drop_before (never reaches Stripe), drop_after (applied, the answer is lost), hang_after (applied, the answer comes after S
seconds), twice (applied two times: a provider that is at fault itself).
"""

import argparse
import json
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote_plus, urlsplit

MODES = ("drop_before", "drop_after", "hang_after", "twice")
OF_ONE_HOP = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.upstream = urlsplit(upstream).netloc
        self.faults: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def take_fault(self, body: bytes) -> dict[str, Any]:
        """Return the first armed fault that this body matches, and disarm it; otherwise an empty one."""
        text = unquote_plus(body.decode(errors="replace"))
        with self.lock:
            for fault in self.faults:
                if fault["match"] in text:
                    self.faults.remove(fault)
                    return fault
        return {}

    def forward(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        connection = HTTPConnection(self.upstream, timeout=30)
        try:
            connection.request(method, target, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", ""), answer.read()
        finally:
            connection.close()


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.0, so that returning without an answer closes the connection: that is a lost answer."""

    server: Proxy

    def do_GET(self) -> None:
        self._answer(*self.server.forward("GET", self.path, self._headers(), b""))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/__fault":
            self._arm(json.loads(body))
            return
        fault = self.server.take_fault(body)
        mode = fault.get("mode")
        if mode == "drop_before":
            return
        for _ in range(2 if mode == "twice" else 1):
            answer = self.server.forward("POST", self.path, self._headers(), body)
        if mode == "drop_after":
            return
        if mode == "hang_after":
            time.sleep(fault["seconds"])
        self._answer(*answer)

    def _arm(self, fault: dict[str, Any]) -> None:
        if fault.get("mode") not in MODES or not fault.get("match"):
            self._answer(400, "text/plain", f"needs a match and one mode of {', '.join(MODES)}".encode())
            return
        with self.server.lock:
            self.server.faults.append({"seconds": 30, **fault})
        self._answer(200, "application/json", b"{}")

    def _headers(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name.lower() not in OF_ONE_HOP}

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the table at the end is the output."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("upstream")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one")
    options = parser.parse_args()
    proxy = Proxy(options.upstream, options.port)
    print(json.dumps({"url": f"http://127.0.0.1:{proxy.server_address[1]}"}), flush=True)
    proxy.serve_forever()


if __name__ == "__main__":
    main()
