"""settled, as it comes: handlers in processes; with a probe that searches the destination, or without one."""

import os
import sys
from datetime import timedelta

from settled import App, ProbeResult
from settled.testing.http import ProviderClient
from tests.compare.peers.base import DEADLINE_SECONDS, REFERENCE, charge, folder, run, says

app = App(folder() / "settled.db")
KEY = bool(os.environ.get("COMPARE_KEY"))


@app.effect(
    name="pay",
    operation_id=lambda a: "payment-1",
    provider_reference=lambda a: REFERENCE,
    provider_idempotency_key=(lambda a: "charge:1") if KEY else None,
    provider_idempotency_guaranteed=KEY,
    timeout=DEADLINE_SECONDS,
    kill_grace=0.5,
    network_drain=timedelta(seconds=2),
)
def pay(arguments: dict[str, object]) -> dict[str, object]:
    return charge(timeout=60)


if os.environ.get("COMPARE_PROBE"):

    @pay.probe
    def find(arguments: dict[str, object]) -> ProbeResult:
        found = ProviderClient(os.environ["COMPARE_URL"]).find(REFERENCE).found
        return ProbeResult.committed(reference=REFERENCE) if found else ProbeResult.unknown()


def submit() -> None:
    app.create_database()
    pay.submit({})


def work() -> None:
    config = folder() / "settled.toml"
    config.write_text("[worker]\nlease_seconds = 3\nbeat_seconds = 1\n")
    os.chdir(folder())
    command = [sys.executable, "-m", "settled_cli.main", "--config", str(config), "worker", "run"]
    os.execv(sys.executable, [*command, "--app", f"{__spec__.name}:app"])


def verdict() -> None:
    operation = app.get("payment-1")
    match operation.status.value:
        case "confirmed":
            says("confirmed", final=True)
        case "rejected" | "cancelled":
            says("failed", final=True)
        case "quarantined":
            says("unknown", final=True, person="look it up, then confirm, reject or retry")
        case _:
            says("running", final=False)


if __name__ == "__main__":
    run(submit=submit, work=work, verdict=verdict)
