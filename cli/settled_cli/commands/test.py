"""`settled test`: run a safety suite and say what it found, no more."""

import json
from pathlib import Path

import click

from settled.testing.report import SafetyReport
from settled.testing.suite import run_safety_suite
from settled_cli.invocation import Invocation, Leaf
from settled_cli.render import emit, write
from settled_cli.reports import check_writable, write_report
from settled_cli.suites import run_file


@click.command(cls=Leaf)
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--bundled", is_flag=True, help="Run the suite that comes with settled, instead of a FILE.")
@click.option(
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="REPORT",
    help="Write the report, too: JUnit for *.xml, text for *.txt, else JSON. May be given several times; folders are made.",
)
@click.pass_context
def test(ctx: click.Context, file: Path | None, bundled: bool, outputs: tuple[Path, ...]) -> None:
    """Run the zero-argument run_safety_suite() of FILE, sync or async, which returns a settled.testing.SafetyReport.

    Exit codes: 0 every check passed; 1 one failed, or there was none; 2 the file gives no report. The verdict speaks of the
    tested conditions and of nothing else.
    """
    if bundled == (file is not None):
        raise click.UsageError("name one FILE, or --bundled. Nothing was run")
    for output in outputs:
        check_writable(output)
    report = run_safety_suite() if file is None else run_file(file)
    for output in outputs:
        write_report(output, _forms(report))
    invocation: Invocation = ctx.obj
    if invocation.for_programs:
        emit(invocation, report.to_json())
    else:
        write(report.to_text() + "\n")
    ctx.exit(0 if report.passed else 1)


def _forms(report: SafetyReport) -> dict[str, str]:
    return {
        ".json": json.dumps(report.to_json(), indent=2, sort_keys=True) + "\n",
        ".xml": report.to_junit(),
        ".txt": report.to_text() + "\n",
    }
