"""Be a shop's payment service: charge over HTTP on 127.0.0.1, remember durably, and fail on request.

    python -m settled_cli.demo.shop --ledger FILE [--port N] [--idempotent] [--end-with-stdin]

Prints {"url": …} on one line when it is ready. What was committed is in FILE whatever becomes of this process; what was
accepted but not committed is lost with it, as it would be in a real service.
"""

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path

from settled_cli.demo.charges import ChargeFile, ChargeFileError
from settled_cli.demo.service import Shop
from settled_cli.demo.web import serve


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="shop", description="A payment service that can lose its answer, for settled demo.")
    parser.add_argument("--ledger", type=Path, required=True, help="append-only JSON lines, one per committed charge")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one")
    parser.add_argument("--idempotent", action="store_true", help="the same Idempotency-Key makes one charge")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when standard input does, so that no orphan stays")
    options = parser.parse_args(arguments)
    try:
        shop = Shop(ChargeFile.open(options.ledger), idempotent=options.idempotent)
        server = serve(shop, options.port)
    except (ChargeFileError, OSError) as error:
        print(f"shop: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_address[1]}"}), flush=True)
    if options.end_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    server.serve_forever(poll_interval=0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
