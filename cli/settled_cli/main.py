"""Run the command line `settled`, and turn whatever ends it into one sentence and an exit code.

Promise: never a traceback for what a person can cause; a broken pipe and Ctrl-C are quiet.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from settled_cli.invocation import LazyVerbs

_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("settled_cli.commands.init:init", "Create the ledger."),
    "demo": ("settled_cli.demo.command:demo", "Kill a worker between a charge and its answer, and count the charges."),
    "doctor": ("settled_cli.commands.doctor:doctor", "Examine this host, the ledger and its settings."),
    "status": ("settled_cli.commands.status:status", "Show counts, what waits longest, workers and sweeps."),
    "health": ("settled_cli.commands.health:health", "Say in one line whether all is well; exit 1 if not."),
    "worker": ("settled_cli.commands.worker:worker", "Run the worker."),
    "submit": ("settled_cli.commands.submit:submit", "Request an effect."),
    "op": ("settled_cli.commands.op:op", "Look at operations, wait for them, call them off."),
    "quarantine": ("settled_cli.commands.quarantine:quarantine", "Decide what no evidence settles."),
    "sweep": ("settled_cli.commands.sweep:sweep", "Run a sweep once, or see what sweeps did."),
    "pause": ("settled_cli.commands.pause:pause", "Hold back a contract, a queue or everything from dispatch."),
    "resume": ("settled_cli.commands.pause:resume", "Lift a pause."),
    "db": ("settled_cli.commands.db:db", "Upgrade, check, back up, restore, adopt or read the ledger."),
    "audit": ("settled_cli.commands.audit:audit", "Verify the chain of events, print its head, export it."),
    "evidence": ("settled_cli.commands.evidence:evidence", "Add what a provider told you."),
    "certify": ("settled_cli.commands.certify:certify_command", "Try a contract at a sandbox, with workers that are killed."),
    "simulate": ("settled_cli.commands.simulate:simulate_command", "Play the worker under virtual time, from seeds."),
    "test": ("settled_cli.commands.test:test", "Run a safety suite."),
    "escalation": ("settled_cli.commands.escalation:escalation", "Try a channel; see what is open and what has not arrived."),
    "incident": ("settled_cli.commands.incident:incident", "Take everything about one operation along as one JSON."),
    "unit": ("settled_cli.commands.unit:unit", "Print the files of the service, or put them in place."),
    "mcp": ("settled_cli.commands.mcp:mcp", "Offer the contracts of an app to agents over MCP."),
    "config": ("settled_cli.commands.config:config", "Show the settings in force and where each comes from."),
}


@click.group(cls=LazyVerbs, table=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="settled", prog_name="settled")
def cli() -> None:
    """A durable worker for effects that may not be done twice and may not be forgotten.

    The options below may also stand after a command's name. Exit codes: 0 done; 1 negative (unsafe, unhealthy, not settled
    in time); 2 usage; 3 not found; 4 refused; 75 store unavailable, try again; 78 configuration.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    try:
        result = cli.main(args=None if arguments is None else list(arguments), prog_name="settled", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:  # the one place that turns every end of a command into a sentence and a code
        if sys.flags.dev_mode:
            raise
        from settled_cli.verdict import say_end  # here: help and completion need no part of the library

        return say_end(error)
    finally:
        _flush()


def main() -> None:
    """Be the script `settled`."""
    sys.exit(run())


def _flush() -> None:
    """Let nothing be left for the interpreter to flush at its end, where a broken pipe would be a traceback."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _discard(stream.fileno())


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


if __name__ == "__main__":
    main()
