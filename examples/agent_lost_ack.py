"""An agent asks for a payment, everything is killed before the answer comes, and the resumed run finds it paid one time.

    python examples/agent_lost_ack.py [--provider-commits-twice]

Real processes: a payment provider, a worker, and the agent. The provider commits the payment and holds its answer back; then the
worker and the agent are killed with SIGKILL. Both are started again. The agent's model has forgotten everything and asks once more, in
other words. Exit 0 if the run completed and the provider's own count says 1, else 1.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from invoices import app, pay_invoice

from settled.integrations import Call, Finish, Run, Runtime, effect_tool
from settled.testing import ProviderClient, running_provider

HERE = Path(__file__).resolve().parent
SETTLED = [sys.executable, "-c", "from settled_cli.main import main; main()"]  # the command `settled`, wherever its script is
WAIT_SECONDS = 120.0


# ------------------------------------------------------------------ the agent


def plan(run: Run) -> Call | Finish:
    """Stand for a model: it pays, then forgets that it did and pays again in other words."""
    notes = ("as agreed", "The first payment surely failed, so pay it now, please.")
    if run.turn < len(notes):
        return Call("pay_invoice", {"invoice": "1042", "cents": 2500, "note": notes[run.turn]}, call_id=f"call_{run.turn:08x}")
    return Finish({"paid": [(step.result or {}).get("output") for step in run.steps]})


def be_the_agent() -> None:
    runtime = Runtime(app, plan=plan, tools=[effect_tool(pay_invoice)])
    run = runtime.start("agent-run-1", "pay invoice 1042")
    while run.state in ("running", "waiting"):
        # The host, not the model, says yes: here to everything, as its owner would on a screen that shows the arguments.
        run = runtime.resume(run, confirmations=[pending.confirm(actor="ana") for pending in run.pending])
    print(json.dumps(run.to_json() | {"output": run.output}))


# ------------------------------------------------------------------ the scene


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider-commits-twice", action="store_true", help="break the provider: the run must fail")
    parser.add_argument("role", nargs="?", choices=["agent"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "agent":
        be_the_agent()
        return 0
    with tempfile.TemporaryDirectory(prefix="settled-lost-ack-") as folder, running_provider() as payments:
        environment = {**os.environ, "SETTLED_DATABASE": str(Path(folder) / "settled.db"), "PROVIDER_URL": payments.url}
        return play(environment, payments.client, twice=options.provider_commits_twice)


def play(environment: dict[str, str], payments: ProviderClient, *, twice: bool) -> int:
    reference = "invoice:1042:payment"
    if twice:
        payments.fail_next("commit_twice", hold_seconds=0)
    else:
        payments.fail_next("hang", seconds=60)
    subprocess.run([*SETTLED, "init"], env=environment, check=True, stdout=subprocess.DEVNULL)
    with process(worker(), environment) as first_worker, process(agent(), environment) as first_agent:
        if not payments.wait(reference, "committed", timeout=WAIT_SECONDS):
            raise SystemExit("agent_lost_ack.py: the payment never reached the provider")
        for one in (first_worker, first_agent):
            one.kill()
            one.wait()
    print("committed at the provider; worker and agent killed before its answer could be recorded")
    with process(worker(), environment), process(agent(), environment, stdout=subprocess.PIPE) as second_agent:
        said = second_agent.communicate(timeout=WAIT_SECONDS)[0]
    run = json.loads(said)
    count, asked = payments.count(reference), [step["operation_id"] for step in run["steps"]]
    print(f"the run is {run['state']}; it asked for {asked}; payments at the provider: {count}")
    good = run["state"] == "completed" and count == 1 and asked == [reference, reference]
    print("one payment was committed" if good else "NOT one payment was committed")
    return 0 if good else 1


def worker() -> list[str]:
    return [*SETTLED, "worker", "run", "--app", "invoices:app"]


def agent() -> list[str]:
    return [sys.executable, str(HERE / "agent_lost_ack.py"), "agent"]


@contextlib.contextmanager
def process(command: list[str], environment: dict[str, str], **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command in this folder while the block runs, then ask it to end, then make it."""
    with subprocess.Popen(command, cwd=HERE, env=environment, text=True, **streams) as started:
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                started.kill()


if __name__ == "__main__":
    sys.exit(main())
