"""docs/metrics.md and the example alerts against what the programs export: nothing missing, nothing invented."""

import ast
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fastapi.routing import APIRoute
from prometheus_client.core import Metric

from tests.pages import ROOT, Row, codes, pages, rows
from tests.signaling_fakes import make_settings, signaling
from usher_cli.wan.metrics import LinksCollector
from usher_core import hop, stun
from usher_core.internal_api import Load
from usher_core.keys import HeldKey, KeyState
from usher_operator import kube, loads, reconciler
from usher_operator.metrics import OperatorMetrics
from usher_relay.counters import Counters
from usher_relay.engine.interface import Snapshot, SocketStatus
from usher_relay.metrics import RelayCollector
from usher_relay.store.counters import StoreCounters
from usher_relay.store.metrics import StoreCollector
from usher_relay.trunk.endpoints import EndpointView
from usher_relay.trunk.metrics import PeersCollector
from usher_shell.pod_watch import PodWatch
from usher_shell.pod_watch_metrics import PodWatchCollector
from usher_shell.watched_file import SourceStatus
from usher_signaling import auth, calls, limits, steering
from usher_signaling.metrics import Metrics
from usher_signaling.peer_regions import origin, peers
from usher_signaling.peer_regions.client import PeerError, PeerTimedOutError
from usher_signaling.sources import select_sources
from usher_transceiver import (
    aiortc_adapter,
    hop_socket,
    internal_api,
    mux,
    observer,
    participant,
    sctp_guard,
    sessions,
    srtp,
)
from usher_transceiver.backends.realtime import counters as realtime
from usher_transceiver.backends.realtime.metrics import RealtimeCollector
from usher_transceiver.backends.watch import BackendWatch
from usher_transceiver.histogram import Histogram
from usher_transceiver.ice import CheckOutcome
from usher_transceiver.metrics import TransceiverCollector
from usher_transceiver.process_load import ProcessLoad
from usher_transceiver.session import EndReason
from usher_transceiver.totals import Totals

PAGE = ROOT / "docs" / "metrics.md"
RULES = ROOT / "examples" / "prometheus-rules.yaml"

PEER_METRICS = (
    "up",
    "used",
    "rtt_seconds",
    "loss_ratio",
    "lacks_newest_hop_key",
    "probes_total",
    "probes_answered_total",
)
UNBOUNDED = {
    ("usher_relay_keys", "id"),
    ("usher_relay_receive_buffer_bytes", "socket"),
    ("usher_relay_send_buffer_bytes", "socket"),
    ("usher_relay_kernel_drops_total", "socket"),
    *((f"usher_relay_peer_{name}", label) for name in PEER_METRICS for label in ("cluster", "address")),
    ("usher_transceiver_codec_info", "codec"),
    ("usher_signaling_region_forwards_total", "region"),
    ("usher_signaling_requests_total", "status"),
    ("usher_operator_api_requests_total", "code"),
    ("usher_wan_packets_total", "there"),
    ("usher_wan_waiting", "there"),
    ("usher_wan_waiting_bytes", "there"),
}
"""Labels whose values are the installation's; the page describes them in words."""

ON_THE_WAY_OF_A_PACKET = (hop, stun, mux, participant, srtp, sctp_guard, aiortc_adapter)
"""Modules whose RemoteErrors the mux counts."""


@dataclass
class Described:
    """A metric: its type, and the values of each label, None where they are the installation's."""

    kind: str
    labels: dict[str, set[str] | None] = field(default_factory=dict)


Exported = dict[str, Described]


@cache
def tree(module: ModuleType) -> list[ast.AST]:
    return list(ast.walk(ast.parse(Path(str(module.__file__)).read_text())))


def called_with(module: ModuleType, function: str, position: int = 0) -> set[str]:
    """The literals that a module hands to a function or method."""
    found = set()
    for node in tree(module):
        if isinstance(node, ast.Call) and len(node.args) > position:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            argument = node.args[position]
            if name == function and isinstance(argument, ast.Constant):
                found.add(str(argument.value))
    return found


def keys_of(module: ModuleType, attribute: str) -> set[str]:
    """The literals by which a module indexes an attribute: `self.drops["hop_type"]`."""
    return {
        str(node.slice.value)
        for node in tree(module)
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and getattr(node.value, "attr", "") == attribute
    }


def once_each(values: Any) -> Counter[str]:
    return Counter(map(str, values))


def relay_metrics() -> list[Metric]:
    held = tuple(HeldKey(kind, "1", state) for kind in ("ice", "hop", "store") for state in KeyState)
    snapshot = Snapshot(Counters(), 1, 1, 1, 1, 1, held, 0.1, 1.0)
    engines = [
        SimpleNamespace(name=name, snapshot=lambda: snapshot, sockets=lambda: [SocketStatus("1", 1, 1, 0)])
        for name in ("python", "native")
    ]
    good = SourceStatus("file", loaded=True, age=0.0, fault="")
    watch = PodWatchCollector(PodWatch(("voice",)), "usher_relay")
    sources = {"routes": lambda: good, "keys": lambda: good, "peers": lambda: good, "trunk_keys": lambda: good}
    redis: Any = SimpleNamespace(is_up=True, refuses_writes=False)
    store = StoreCollector(StoreCounters(), redis)
    collectors = [RelayCollector(engine, sources, with_store=True) for engine in engines]
    peers = PeersCollector(lambda: [EndpointView(2, "198.51.100.7:3479", True, True, 20.0, 0.0, 1, 1)])
    by_name: dict[str, Metric] = {}
    for metric in (metric for collector in (*collectors, watch, peers, store) for metric in collector.collect()):
        by_name.setdefault(metric.name, Metric(metric.name, "", metric.type)).samples.extend(metric.samples)
    return list(by_name.values())


class Sessions(SimpleNamespace):
    """As much of a session registry as its metrics read."""

    def __iter__(self) -> Any:
        return iter(())


def transceiver_metrics() -> list[Metric]:
    totals: Any = Totals(tuple, lambda: 0.0)
    totals.ended = once_each(EndReason)
    registry: Any = Sessions(
        load=lambda: Load(sessions=0, max_sessions=1, draining=False, accepts=True),
        created=0,
        totals=totals,
        refused=once_each(keys_of(sessions, "refused")),
        backend_watch=BackendWatch(lambda: 0.0),
        observers_dropped=once_each(
            (observer.TOO_SLOW[1], observer.TOO_MANY_EVENTS[1], *keys_of(internal_api, "observers_dropped"))
        ),
    )
    reasons = set().union(*(called_with(module, "RemoteError") for module in ON_THE_WAY_OF_A_PACKET))
    door: Any = SimpleNamespace(
        received=0,
        records=0,
        sent=0,
        sent_records=0,
        paths=0,
        time_offset_ms=0,
        drops=once_each(reasons | keys_of(mux, "drops")),
        checks=once_each(CheckOutcome),
        reports=once_each(keys_of(mux, "reports")),
        joiner=SimpleNamespace(joined=0, expired=0, overflowed=0),
    )
    failures = keys_of(hop_socket, "send_failures") | called_with(hop_socket, "get", 1)
    socket: Any = SimpleNamespace(
        send_failures=once_each(failures | set(hop_socket._FAILURES.values())),
        receive_failures=0,
        kernel_drops=0,
        receive_buffer=1,
        send_buffer=1,
    )
    ticker: Any = SimpleNamespace(ticks=0, late_ticks=0, skipped_ticks=0, worst_late=0.0, lateness=Histogram((0.1,)))
    keys: Any = SimpleNamespace(is_wrong=False)
    bridge = realtime.RealtimeCounters(
        calls=once_each(realtime.OUTCOMES),
        events=once_each(realtime.DIRECTIONS),
        dropped_bytes=once_each(realtime.DROPS),
        truncations=once_each(realtime.TRUNCATIONS),
    )
    collector = TransceiverCollector(registry, door, socket, ticker, keys, "libopus", ProcessLoad(time.monotonic))
    return [*collector.collect(), *RealtimeCollector(bridge).collect()]


async def signaling_metrics(folder: Path) -> list[Metric]:
    async with signaling(folder) as stack:
        paths = [route.path for route in stack.app.routes if isinstance(route, APIRoute)]
        for path in [*paths, "/assets/app.css", "/nothing-there"]:
            await stack.client.request("GET", path.replace("{call_id}", "rtc_1"))
        metrics = stack.app.state.services.metrics
        for outcome in (
            called_with(calls, "labels") | called_with(steering, "labels") | called_with(calls, "_failed", 1)
        ):
            metrics.placements.labels(outcome)
        for code in called_with(auth, "_unauthorised"):
            metrics.auth_failures.labels(code)
        for limit in called_with(limits, "labels"):
            metrics.limited.labels(limit)
        outcomes = {"answered", "cancelled", "own_fault", "refused", PeerError.outcome, PeerTimedOutError.outcome}
        for kind in called_with(peers, "_for_caller", 1) | called_with(peers, "_books", 1) | {"close"}:
            for outcome in outcomes | called_with(peers, "labels", 2):
                metrics.region_forwards.labels("eu", kind, outcome)
        for outcome in called_with(peers, "labels") | {origin.WRONG_TOKEN, origin.INVALID_FORWARD}:
            metrics.from_regions.labels(outcome)
        found = {metric.name: metric for metric in metrics._registry.collect()}
    in_kubernetes = Metrics()
    settings = make_settings(folder, routes_file=None, pods_namespace=("voice",), relay_pools_namespace=("voice",))
    select_sources(settings, in_kubernetes)
    found |= {metric.name: metric for metric in in_kubernetes._registry.collect() if metric.name not in found}
    return list(found.values())


def wan_metrics() -> list[Metric]:
    link: Any = SimpleNamespace(
        target=("192.0.2.1", 3478), forwarded=0, lost=0, dropped=0, unreachable=0, waiting=0, waiting_bytes=0
    )
    return list(LinksCollector([link]).collect())


def operator_metrics() -> list[Metric]:
    metrics = OperatorMetrics()
    outcomes = called_with(reconciler, "_count", 1)
    for kind in reconciler.KINDS:
        metrics.pass_seconds.labels(kind)
        for outcome in outcomes:
            metrics.passes.labels(kind, outcome)
    errors = {kube.KubeError.reason, *(error.reason for error in kube.KubeError.__subclasses__())}
    for function, position in (("_count", 2), ("_failed", 2), ("labels", 0)):
        errors |= called_with(reconciler, function, position)
    for reason in errors:
        metrics.errors.labels(reason)
    for verb in called_with(kube, "_request"):
        metrics.api_requests.labels(verb, "200")
    for outcome in called_with(loads, "_on_outcome"):
        metrics.loads.labels(outcome)
    return list(metrics.registry.collect())


def described(metrics: list[Metric]) -> Exported:
    suffixes = {"counter": "_total", "info": "_info"}
    found: Exported = {}
    for metric in metrics:
        name = metric.name + suffixes.get(metric.type, "")
        labels: dict[str, set[str] | None] = {}
        assert metric.samples, f"{name}: no sample, so its labels are not known here"
        for sample in metric.samples:
            for label, value in sample.labels.items():
                known = labels.setdefault(label, set())
                if label != "le" and known is not None:
                    known.add(value)
        labels.pop("le", None)
        for label in labels:
            if (name, label) in UNBOUNDED:
                labels[label] = None
        found[name] = Described(metric.type, labels)
    return found


@pytest.fixture
async def exported(tmp_path: Path) -> Exported:
    programs = [relay_metrics(), transceiver_metrics(), await signaling_metrics(tmp_path)]
    return described([metric for found in (*programs, wan_metrics(), operator_metrics()) for metric in found])


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def values_of(text: str, page: list[Row]) -> set[str] | None:
    """What a page says of a label's values: a list, a table elsewhere on the page, or words."""
    if link := re.fullmatch(r"\[below\]\(#(.+)\)", text):
        found = [codes(row.cells[0])[0] for row in page if anchor(row.heading) == link[1]]
        assert found, f"no table under #{link[1]}"
        assert len(found) == len(set(found)), f"a value stands twice under #{link[1]}"
        return set(found)
    return set(codes(text)) if re.fullmatch(r"`[^`]+`(, `[^`]+`)*", text) else None


def documented() -> Exported:
    page = list(rows(PAGE))
    found: Exported = {}
    for row in page:
        name = codes(row.cells[0])[0] if row.cells[0].startswith("`usher_") else ""
        if not name:
            continue
        assert name not in found, f"{name} stands twice"
        _, kind, labels, meaning = row.cells
        assert meaning, f"{name}: nothing is said of it"
        found[name] = Described(kind)
        for part in filter(None, labels.split(";")):
            label, _, values = part.strip().partition(": ")
            found[name].labels[label.strip("`")] = values_of(values, page)
    return found


async def test_the_page_has_every_metric_and_no_other(exported: Exported) -> None:
    page = documented()
    assert sorted(page) == sorted(exported)
    assert {name: entry.kind for name, entry in page.items()} == {name: entry.kind for name, entry in exported.items()}


async def test_the_page_has_every_label_with_all_its_values(exported: Exported) -> None:
    page = documented()
    for name, entry in exported.items():
        assert page[name].labels == entry.labels, name


async def test_values_are_explained() -> None:
    headings = re.compile(r"(Reasons|Results|Events|Outcomes) of `|Routes of")
    explained = [row for row in rows(PAGE) if headings.match(row.heading)]
    assert explained
    assert [row.cells[0] for row in explained if not row.cells[1]] == []


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\busher_(?:relay|transceiver|signaling|operator)_\w+\b(?![/.]\w)", text))


async def test_metrics_that_other_pages_name_exist(exported: Exported) -> None:
    for page in pages():
        unknown = {name for name in names_in(page.read_text()) if name not in exported}
        assert unknown == set(), page.name


async def test_drop_reasons_that_the_troubleshooting_page_names_exist(exported: Exported) -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    named = re.findall(r"(relay|transceiver) drops of reason `(\w+)`", text)
    assert named
    for program, reason in named:
        assert reason in (exported[f"usher_{program}_drops_total"].labels["reason"] or ())


RULE_LINES = re.compile(
    r"""(?x) groups: | \ {2}-\ name:\ \w+ | \ {4}rules: | \ {6}-\ alert:\ (?P<alert>\w+) | \ {8}expr:\ (?P<expr>.+)
    | \ {8}for:\ \d+[sm] | \ {8}labels: | \ {10}severity:\ (?P<severity>warning|critical) | \ {8}annotations:
    | \ {10}summary:\ (?P<summary>".+") | \ *\#.* | """
)


def rules() -> dict[str, dict[str, str]]:
    """The example rules. The file keeps to a few forms of line, so that no YAML parser is needed."""
    found: dict[str, dict[str, str]] = {}
    for line in RULES.read_text().splitlines():
        match = RULE_LINES.fullmatch(line)
        assert match, f"a line of another form: {line!r}"
        values = {key: value for key, value in match.groupdict().items() if value}
        if "alert" in values:
            current = found[values.pop("alert")] = {}
        if values:
            current |= values
    return found


async def test_the_example_alerts_use_metrics_and_values_that_exist(exported: Exported) -> None:
    for name, rule in rules().items():
        assert set(rule) == {"expr", "severity", "summary"}, name
        # What YAML would read as something else than a plain text.
        assert ": " not in rule["expr"], name
        assert " #" not in rule["expr"], name
        assert names_in(rule["expr"]), name
        for metric, matchers in re.findall(r"(usher_\w+)(?:\{([^}]*)\})?", rule["expr"]):
            entry = exported[metric]
            for label, values in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
                assert set(values.split("|")) <= (entry.labels[label] or set()), (name, metric)


def test_the_page_explains_every_example_alert_and_no_other() -> None:
    explained = [codes(row.cells[0])[0] for row in rows(PAGE) if row.heading == "Alerts"]
    assert explained == [*dict.fromkeys(explained)]
    assert set(explained) == set(rules())
