"""`settled config`: the settings in force, and where each of them comes from. Opens no ledger."""

import os

import click

from settled.config import mask_url, resolve_database, shown_settings
from settled.core.errors import ConfigurationError
from settled_cli.invocation import Invocation, Verbs
from settled_cli.opening import load
from settled_cli.render import emit
from settled_worker.channels import trouble_with


@click.group(cls=Verbs)
def config() -> None:
    """Show the settings in force and where each comes from."""


@config.command()
@click.pass_obj
def show(invocation: Invocation) -> None:
    """Show every setting, its value and its origin. What may be secret is masked."""
    emit(invocation, [setting._asdict() for setting in shown_settings(load(invocation))], ("name", "value", "origin"))


@config.command()
@click.pass_obj
def validate(invocation: Invocation) -> None:
    """Check the settings, and what each channel needs on this host. Exit 78 names the first thing that is wrong."""
    loaded = load(invocation)
    for name, channel in loaded.settings.escalation.channels.items():
        trouble = trouble_with(channel, os.environ)
        if trouble is not None:
            raise ConfigurationError(f"escalation.channels.{name}: {trouble}. Mend it, then try it: settled escalation test {name}")
    chosen = resolve_database(invocation.database, None, os.environ, loaded)
    file = None if loaded.config_file is None else str(loaded.config_file.absolute())
    emit(invocation, {"valid": True, "file": file, "database": mask_url(chosen.url_or_path), "database_origin": chosen.origin})
