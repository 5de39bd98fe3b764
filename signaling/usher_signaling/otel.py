"""Traces by OpenTelemetry (package extra `otel`). Endpoint, sampling and limits are those of its `OTEL_…` variables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from usher_signaling.tracing import Annotate, Attributes

ROUTE = "http.route"
STATUS = "http.response.status_code"


def otlp_tracer() -> OtelTracer:
    """A tracer that sends its spans by OTLP over HTTP, to http://localhost:4318 if no variable says otherwise."""
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "usher-signaling"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtelTracer(provider)


class OtelTracer:
    """A `tracing.Tracer`. Its provider is not the global one: other libraries in the process stay as they are."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("usher_signaling", version("usher"))
        self._propagator = TraceContextTextMapPropagator()

    @contextlib.contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[Annotate]:
        caller = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        attributes = {"http.request.method": method}
        # A context of its own: what the server had open before is none of the caller's business.
        parent = self._propagator.extract(caller, context=Context())
        with self._open(method, SpanKind.SERVER, attributes, parent) as annotate:
            yield annotate

    @contextlib.contextmanager
    def step(self, name: str, attributes: Attributes) -> Iterator[Annotate]:
        with self._open(name, SpanKind.INTERNAL, attributes) as annotate:
            yield annotate

    @contextlib.contextmanager
    def call(self, name: str, attributes: Attributes) -> Iterator[Annotate]:
        with self._open(name, SpanKind.CLIENT, attributes) as annotate:
            yield annotate

    def traceparent(self) -> str | None:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get("traceparent")

    def close(self) -> None:
        self._provider.shutdown()

    @contextlib.contextmanager
    def _open(
        self, name: str, kind: SpanKind, attributes: Attributes, parent: Context | None = None
    ) -> Iterator[Annotate]:
        with self._tracer.start_as_current_span(
            name,
            parent,
            kind,
            dict(attributes),
            # The text of an exception may quote SDP; its type is enough here.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:

            def annotate(more: Attributes) -> None:
                span.set_attributes(dict(more))
                if ROUTE in more:
                    span.update_name(f"{name} {more[ROUTE]}")
                if int(more.get(STATUS, 0)) >= 500:
                    span.set_status(StatusCode.ERROR)

            try:
                yield annotate
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR)
                raise
