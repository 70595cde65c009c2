"""What a command line was called with, and the kinds of commands that share it.

Promise: the options that every command knows may stand before or after its name, and nothing here imports what a help text
does not need.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, TypeVar

import click

FORMATS: Final = ("table", "json", "jsonl")
Command = TypeVar("Command", bound=Callable[..., Any])
_SENTENCE_MAX: Final = 200  # characters
SECONDS_MAX: Final = 1e9  # what the library takes, too


def app_option(text: str) -> Callable[[Command], Command]:
    """Return the option that names the user's app; `text` is its help."""
    return click.option("--app", "app_ref", type=Reference(), metavar="MODULE:APP", help=text)


def only(names: Iterable[str], what: str, **more: Any) -> dict[str, Any]:
    """Return how an option is declared that takes one of these names: they stand in its help, which wraps, and not in its head."""
    chosen = tuple(names)
    return {"type": click.Choice(chosen), "metavar": what, "help": f"Only this one: {', '.join(chosen)}.", **more}


@dataclass(slots=True)
class Invocation:
    """The options that every command knows. `config` names a settings file; without one ./settled.toml is read."""

    database: str | None = None
    config: str | None = None
    output: str = "table"

    @property
    def for_programs(self) -> bool:
        """Whether the answer is read by a program."""
        return self.output != FORMATS[0]


class Refused(click.ClickException):
    """A command may not be carried out as things stand."""

    exit_code = 4


class Seconds(click.FloatRange):
    """A time from 0 on that ends: neither NaN, which compares with nothing, nor infinity."""

    def __init__(self) -> None:
        super().__init__(min=0, max=SECONDS_MAX, max_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds. Raises BadParameter."""
        if isfinite(seconds := super().convert(value, param, ctx)):
            return seconds
        self.fail(f"{value} is not a finite number of seconds.", param, ctx)


class Reference(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """MODULE:NAME. What is behind it is looked up later."""

    name = "reference"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it is. Raises BadParameter."""
        module, _, name = str(value).partition(":")
        if not module.strip() or not name.strip():
            self.fail(f"{value!r} is not of the form MODULE:NAME, for example shop.effects:app.", param, ctx)
        return str(value)


class _Explained(click.Command):
    """A command whose help nobody need read to its end, and that takes no empty value: most often that is a variable nobody has set."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Take the arguments apart, where a help text is written, too. A reader of it that goes away is no failure."""
        try:
            return super().make_context(*arguments, **options)
        except BrokenPipeError:
            raise click.exceptions.Exit(0) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the arguments apart. Raises UsageError for an empty one, before a path or a default is made of it."""
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        for parameter in self.params:
            value = given.get(parameter.name or "")
            if value == "" or (isinstance(value, list | tuple) and "" in value):
                raise click.UsageError(f"{parameter.get_error_hint(ctx)} is empty. Nothing was changed", ctx)
        return super().parse_args(ctx, args)


class Leaf(_Explained):
    """A command that does something. It takes the common options, too, without repeating them in its help."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params.extend(common_options(hidden=True))


class Verbs(_Explained, click.Group):
    """A group of commands."""

    command_class = Leaf

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each command, wrapped and whole."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(_SENTENCE_MAX)) for name in self.list_commands(ctx)])


class LazyVerbs(Verbs):
    """A group whose commands are imported when they are called. `table` maps a name to (module:attribute, help line)."""

    def __init__(self, *arguments: Any, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table = table
        self.params.extend(common_options(hidden=False))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the whole command line apart. Raises UsageError where a part of it is no text: nothing could store or show it."""
        broken = next((one for one in args if any("\ud800" <= character <= "\udfff" for character in one)), None)
        if broken is not None:
            raise click.UsageError(f"the argument {broken!r} is not valid UTF-8 text. Nothing was changed")
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help lines without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])


def common_options(*, hidden: bool) -> list[click.Parameter]:
    """Return the options that stand before or after any command's name."""
    formats = click.Choice(FORMATS)
    variable = None if hidden else "SETTLED_CONFIG"  # read once, or it would overrule what stands before the command's name
    return [
        _common(["--database"], hidden, metavar="PATH|URL", help="The ledger. Default: SETTLED_DATABASE, settled.toml, ./settled.db."),
        _common(["--config"], hidden, metavar="FILE", envvar=variable, help="The settings file. Default: ./settled.toml."),
        _common(["output", "-o", "--format"], hidden, type=formats, help="How to answer: table (for people), json or jsonl."),
    ]


def _common(names: list[str], hidden: bool, **options: Any) -> click.Option:
    return click.Option(names, hidden=hidden, expose_value=False, callback=_keep, **options)


def _keep(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    invocation = ctx.ensure_object(Invocation)
    if value is not None and parameter.name is not None:
        setattr(invocation, parameter.name, value)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Show a value that the library refuses as wrong usage. Not a TypeError: what people type has its type from us."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error
