"""Traces: what a request did, as spans of one trace; nothing of OpenTelemetry where nobody asked for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.signaling_fakes import API_KEY, OFFER, FakeTransceiver, place, signaling
from usher_core.errors import LocalError
from usher_signaling.otel import OtelTracer, otlp_tracer
from usher_signaling.tracing import make_tracer

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Recorder:
    """A tracer, and the spans that it has finished."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = OtelTracer(provider)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def text(self) -> str:
        return "".join(span.to_json() for span in self._exporter.get_finished_spans())


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def traceparent(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"


async def test_request_try_and_create_are_one_trace_that_the_transceiver_goes_on_with(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with signaling(tmp_path, tracer=recorder.tracer) as stack:
        call = await place(stack.client, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        assert call.status_code == 201
        sent = stack.fleet.transceivers[0].created[0].traceparent
    request, step, create = map(recorder.one, ("POST /v1/realtime/calls", "place", "POST /internal/v1/sessions"))
    assert request.parent is not None
    assert traceparent(request).startswith(f"00-{TRACE}-")
    assert f"{request.parent.span_id:016x}" == PARENT
    assert (step.parent, create.parent) == (request.context, step.context)
    assert sent == traceparent(create)
    assert (request.kind, create.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 201


async def test_each_try_is_a_span_and_a_failed_one_says_why(tmp_path: Path, recorder: Recorder) -> None:
    dead, well = FakeTransceiver(pod=1, dead=True), FakeTransceiver(pod=2)
    async with signaling(tmp_path, dead, well, tracer=recorder.tracer) as stack:
        dead.dead = False
        await stack.app.state.services.directory.refresh()
        dead.dead = True
        calls = 0
        while len(recorder.spans("place")) == calls:  # which of the two is asked first is drawn
            assert (await place(stack.client)).status_code == 201
            calls += 1
    failed = [span for span in recorder.spans("place") if span.status.status_code is StatusCode.ERROR]
    assert [dict(span.attributes or {})["error.type"] for span in failed] == ["UnreachableError"]
    assert failed[0].attributes is not None
    assert failed[0].attributes["usher.transceiver"] == dead.http


async def test_a_request_without_a_context_begins_a_trace_and_a_malformed_one_counts_as_none(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with signaling(tmp_path, tracer=recorder.tracer) as stack:
        await place(stack.client, headers={"traceparent": "00-nonsense"})
        await place(stack.client)
        await stack.client.get("/livez")
    first, second = recorder.spans("POST /v1/realtime/calls")
    assert (first.parent, second.parent) == (None, None)
    assert traceparent(first)[:35] != traceparent(second)[:35]
    assert "/livez" not in recorder.text()


async def test_a_fault_of_ours_is_an_error_and_no_span_holds_a_secret(tmp_path: Path, recorder: Recorder) -> None:
    async with signaling(tmp_path, tracer=recorder.tracer) as stack:
        call = await place(stack.client)
        await stack.client.get(call.headers["location"])
        fake = stack.fleet.transceivers[0]
        fake.bad_offer = f"SDP line 1: got {OFFER}"
        await place(stack.client)
        fake.bad_offer, fake.max_sessions = "", 0
        assert (await place(stack.client)).status_code == 503
    statuses = [span.status.status_code for span in recorder.spans("POST /v1/realtime/calls")]
    assert statuses == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]
    text = recorder.text()
    for secret in (API_KEY, "ice-ufrag", call.headers["location"].rpartition("/")[2]):
        assert secret not in text


def test_the_exporter_is_made_and_closed_without_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    otlp_tracer().close()


def test_without_the_extra_the_flag_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "usher_signaling.otel", None)
    with pytest.raises(LocalError, match="usher\\[otel\\]"):
        make_tracer(enabled=True)


def test_switched_off_nothing_of_it_is_imported() -> None:
    # Libraries of ours load OpenTelemetry's API where it is installed; making and sending spans is another matter.
    ours = "{'usher_signaling.otel', 'opentelemetry.sdk.trace', 'opentelemetry.exporter'}"
    script = f"import sys, usher_signaling.main; print({ours} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=50)
    assert shown.stdout.strip() == "set()"
