"""What a transceiver pod means for routing and placement (design D12). Pure: the API server's JSON in, routes out.

Rules:
* A pod has a route from having an IP and a pod id until its object is gone or its phase is terminal: Ready or not, also
  while it is being deleted. A slow probe cuts no call.
* It takes new calls while it is Ready, active and not being deleted, once everybody can know its route: the caller says
  which pods have been known for long enough.
* A pod whose labels, address or ports make no sense has no route, and costs no other pod its own.
* One route, two pods: the older pod has it, by creation time and then uid. So all programs say the same, a new pod
  takes nothing from a running one, and nothing changes back and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import ValidationError

from usher_core.decimals import read_decimal
from usher_core.errors import RemoteError, describe
from usher_core.ids import MAX_CLUSTER, MAX_POD, Route, join_host_port
from usher_core.kubernetes_names import (
    ACTIVE,
    CLUSTER_ID_LABEL,
    HOP_PORT_NAME,
    HTTP_PORT_NAME,
    POD_ID_LABEL,
    REGION_LABEL,
    STATE_LABEL,
)
from usher_core.routes import RouteTable, Transceiver

TERMINAL_PHASES = ("Succeeded", "Failed")

REASONS = ("cluster_id", "pod_id", "port", "address", "shape")
"""Why a pod has no route though it should: the reasons of `parse_pod`'s RemoteError."""


@dataclass(frozen=True, slots=True)
class RoutablePod:
    """A pod that has a route.

    `created` is its creation time as the API server writes it, whose order as text is that of time; `takes_calls`
    leaves out how long the pod has been known.
    """

    namespace: str
    name: str
    uid: str
    created: str
    labels: Mapping[str, str]
    transceiver: Transceiver
    takes_calls: bool

    @property
    def route(self) -> Route:
        """The route that names it."""
        return self.transceiver.route

    @property
    def age_rank(self) -> tuple[str, str]:
        """Orders pods from old to new."""
        return self.created, self.uid


@dataclass(frozen=True, slots=True)
class PodRoutes:
    """The routes of all pods: the table, the pod of each route, and how many pods lost theirs to an older one."""

    table: RouteTable
    pods: Mapping[Route, RoutablePod]
    conflicts: int


def parse_pod(body: Mapping[str, Any]) -> RoutablePod | None:
    """Return what a pod means; None while it has no id or no address, and once it has ended.

    Raises RemoteError, with a reason of REASONS, for a pod that should have a route and can't.
    """
    try:
        metadata, status = body["metadata"], body.get("status") or {}
        labels: dict[str, str] = metadata.get("labels") or {}
        ip = status.get("podIP")
        if POD_ID_LABEL not in labels or not ip or status.get("phase") in TERMINAL_PHASES:
            return None
        cluster = _number(labels, CLUSTER_ID_LABEL, 1, MAX_CLUSTER, "cluster_id")
        pod = _number(labels, POD_ID_LABEL, 0, MAX_POD, "pod_id")
        ports = _ports(body["spec"])
        if HOP_PORT_NAME not in ports:
            _refuse("port", f"no container port is named {HOP_PORT_NAME!r}")
        is_ready = any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in status.get("conditions") or ()
        )
        takes_calls = is_ready and labels.get(STATE_LABEL) == ACTIVE and "deletionTimestamp" not in metadata
        return RoutablePod(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            created=metadata["creationTimestamp"],
            labels=labels,
            transceiver=Transceiver(
                cluster=cluster,
                pod=pod,
                udp=join_host_port(ip, ports[HOP_PORT_NAME]),
                http=f"http://{join_host_port(ip, ports[HTTP_PORT_NAME])}" if HTTP_PORT_NAME in ports else "",
                placeable=takes_calls,
                region=labels.get(REGION_LABEL, ""),
            ),
            takes_calls=takes_calls,
        )
    except ValidationError as error:
        raise RemoteError("address", describe(error)) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RemoteError("shape", f"this is no pod: {type(error).__name__} {error}") from None


def routes_of(pods: Iterable[RoutablePod], is_settled: Callable[[RoutablePod], bool]) -> PodRoutes:
    """Return the routes of pods.

    Args:
        pods: in any order.
        is_settled: whether a pod has been known for long enough to get calls.
    """
    chosen: dict[Route, RoutablePod] = {}
    conflicts = 0
    for pod in pods:
        holder = chosen.setdefault(pod.route, pod)
        if holder is not pod:
            conflicts += 1
            if pod.age_rank < holder.age_rank:
                chosen[pod.route] = pod
    entries = (
        pod.transceiver
        if is_settled(pod) or not pod.takes_calls
        else pod.transceiver.model_copy(update={"placeable": False})
        for pod in chosen.values()
    )
    return PodRoutes(RouteTable(tuple(entries)), chosen, conflicts)


def _number(labels: Mapping[str, str], name: str, least: int, most: int, reason: str) -> int:
    text = labels.get(name, "")
    number = read_decimal(text, most, least)
    # One spelling only, so that equal ids are equal labels for selectors, too.
    if number is None or str(number) != text:
        _refuse(reason, f"the label {name} is {text[:20]!r}, and has to be a number within {least}..{most}")
    return number


def _ports(spec: Mapping[str, Any]) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in spec["containers"]
        for port in container.get("ports") or ()
        if "name" in port
    }


def _refuse(reason: str, message: str) -> NoReturn:
    raise RemoteError(reason, message)
