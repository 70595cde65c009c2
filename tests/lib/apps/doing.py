"""The side that does what `agreed` declares; only a worker imports it."""

from typing import Any

from agreed import capture_payment  # type: ignore[import-not-found]

from settled import App

app = App()


@app.handler(capture_payment)
def capture(arguments: dict[str, Any]) -> dict[str, str]:
    return {"captured": arguments["invoice_id"]}
