"""A request is followed from the span that submitted it to the spans of its attempts; without OpenTelemetry nothing of it is there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from settled import App
from settled.store import audit
from settled.store.reads import find_row, read_trace
from settled.tracing import AttemptSpans, NoSpans, attempt_spans, current_traceparent
from tests.worker.harness import Hand, declare, returned, submit

ROOT = Path(__file__).parents[3]

CHILD = """
import json, sys
if {sdk}:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
from settled import App
from settled.config.settings import Settings
from settled_worker.worker import Worker
app = App(sys.argv[1])
app.create_database()

def lost(arguments):
    raise ConnectionResetError("MARKER-IN-THE-ERROR")

app.effect(name="pay", isolation="thread", operation_id=lambda a: f"pay:{{a['n']}}")(lambda arguments: "MARKER-IN-THE-RESULT")
app.effect(name="lose", isolation="thread", operation_id=lambda a: f"lose:{{a['n']}}")(lost)
told = {{}}
if {sdk}:
    with trace.get_tracer("caller").start_as_current_span("request") as span:
        app.submit("pay", {{"n": 1, "secret": "MARKER-IN-THE-ARGUMENTS"}}, metadata={{"mine": "x"}})
        told["trace"], told["span"] = span.get_span_context().trace_id, span.get_span_context().span_id
else:
    app.submit("pay", {{"n": 1}})
app.submit("lose", {{"n": 2}})
Worker(app, Settings(), app_reference="x:app", once=True).run()
told["modules"] = [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]
told["metadata"] = dict(app.get("pay:1").metadata or {{}})
if {sdk}:
    told["spans"] = [json.loads(one.to_json()) for one in exporter.get_finished_spans()]
sys.stderr.write(json.dumps(told))
"""


def child(folder: Path, *, sdk: bool) -> tuple[dict[str, Any], str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("lib", "worker", "cli"))}
    command = [sys.executable, "-c", CHILD.format(sdk=sdk), str(folder / "traced.db")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr
    said = next(line for line in ended.stderr.splitlines() if line.startswith("{"))
    return json.loads(said), said


def test_the_span_of_an_attempt_links_to_the_span_that_submitted_it(tmp_path: Path) -> None:
    told, said = child(tmp_path, sdk=True)
    assert "MARKER" not in said
    assert told["metadata"] == {"mine": "x"}, "metadata is the caller's"
    spans = {one["name"]: one for one in told["spans"]}
    paid, lost = spans["attempt pay"], spans["attempt lose"]
    (link,) = paid["links"]
    assert int(link["context"]["trace_id"], 16) == told["trace"] and int(link["context"]["span_id"], 16) == told["span"]
    assert paid["context"]["trace_id"] != spans["request"]["context"]["trace_id"] and paid["parent_id"] is None
    assert paid["attributes"]["settled.operation_id"] == "pay:1" and paid["attributes"]["settled.attempt"] == 1
    assert paid["attributes"]["settled.end"] == "returned" and paid["status"]["status_code"] == "UNSET"
    assert lost["links"] == [] and lost["status"]["status_code"] == "ERROR"
    assert lost["attributes"]["error.type"] == "ConnectionResetError"


def test_a_program_without_opentelemetry_imports_none_of_it(tmp_path: Path) -> None:
    told, _ = child(tmp_path, sdk=False)
    assert told["modules"] == []


def test_the_trace_is_no_part_of_the_request(app: App) -> None:
    declare(app)
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("first") as span:
        (one,) = submit(app, 1)
        context = span.get_span_context()
    with tracer.start_as_current_span("second"):
        again = app.submit("pay", {"n": 1})
    assert again.operation_id == one and not again.created
    (alone,) = submit(app, 2)
    with app.ledger.read() as transaction:
        row, other = find_row(transaction, one), find_row(transaction, alone)
        assert row is not None and other is not None
        assert read_trace(transaction, row.id) == f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        assert read_trace(transaction, other.id) is None
    assert audit.verify(app.ledger) == []


def test_nothing_that_a_tracer_does_reaches_the_work(app: App, hand: Any, monkeypatch: Any) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("broken tracer")

    declare(app)
    worker: Hand = hand()
    submit(app, 1)
    (job,) = worker.step().jobs
    monkeypatch.setattr(AttemptSpans, "_begin", lambda *_: Broken())
    spans = AttemptSpans(trace, lambda rows: 1 / 0)  # type: ignore[arg-type, return-value]
    spans.started([job])
    spans = AttemptSpans(trace, lambda rows: {})
    spans.started([job])
    spans.ended([returned(job, app.shell.clock.now())])
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", Broken())
    assert current_traceparent() is None
    assert isinstance(attempt_spans(lambda rows: {}), NoSpans)
    assert submit(app, 3) == ["pay:3"]
