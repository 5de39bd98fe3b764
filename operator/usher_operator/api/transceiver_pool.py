"""TransceiverPool: the pods that own calls."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from usher_core.ids import MAX_CLUSTER, MAX_POD
from usher_operator.api.common import (
    Condition,
    Disruption,
    Duration,
    Keys,
    LocalReference,
    Metadata,
    Model,
    Placement,
    Resources,
    SecretKeyReference,
    Strategy,
)
from usher_operator.api.fields import (
    NAME_RULE,
    PORT,
    FreeForm,
    Image,
    PodTemplate,
    Region,
    Rule,
    keyed_by,
    lasting,
    rules,
)


class Media(Model):
    """The sockets of a transceiver."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "self.port != self.httpPort",
                "port and httpPort must differ, so that firewall rules can't mean the wrong one",
            )
        )
    )

    port: int = Field(default=7200, ge=1024, le=65535)
    """UDP port that relays send to."""
    http_port: int = Field(default=7280, ge=1024, le=65535)
    """TCP port of the internal API, probes and metrics."""


class Capacity(Model):
    """How much one pod takes."""

    max_sessions_per_pod: int = Field(default=50, ge=1, le=10_000)
    """Calls at a time; a pod refuses more, and signaling places them elsewhere."""


class Drain(Model):
    """How a transceiver ends."""

    grace_period: Duration = Field(default="1h", json_schema_extra=lasting("0s", "24h"))
    """How long calls may go on after a pod was told to end; 0s to 24h. A node drain waits so long for them."""


_BACKEND_NAME = rules(
    Rule(
        "self.matches('^[A-Za-z0-9][A-Za-z0-9._-]*$')",
        "write echo, parrot, realtime, or the name of an entry point: letters, digits and . _ -",
    )
)

_UPSTREAM_URL = rules(
    Rule(
        rf"self.matches(r'^wss?://(\[[0-9A-Fa-f:.]+\]|[^/?#@:\[\]\s]+)({PORT})?([/?][^#\s]*)?$')",
        "write a URL that begins with ws:// or wss://, without user, password, # or blanks, such as "
        "wss://api.example.com/v1/realtime",
    )
)

_MODEL_NAME = rules(
    Rule(
        "self.matches('^([A-Za-z0-9][A-Za-z0-9._:/@-]*)?$')",
        "write a model as letters, digits and . _ : / @ -, beginning with a letter or digit",
    )
)


class Realtime(Model):
    """The server behind the backend `realtime`: it speaks the Realtime protocol over a WebSocket, one for each call."""

    url: str = Field(min_length=1, max_length=1024, json_schema_extra=_UPSTREAM_URL)
    """Where it is: `wss://…`, or `ws://…` within the cluster, where nobody reads along."""
    model: str = Field(default="", max_length=256, json_schema_extra=_MODEL_NAME)
    """Model that it is asked for where the call names none. Empty: the server's own choice."""
    api_key_secret_ref: SecretKeyReference | None = None
    """API key of the server, one line in a Secret of yours. Left out: none is sent."""
    headers_secret_ref: SecretKeyReference | None = None
    """Further headers for the server: a JSON object of texts in a Secret of yours, such as `{"api-key": "…"}`."""
    truncate: Literal["Usher", "Upstream"] = "Usher"
    """Who cuts an answer short, once a caller interrupts it, at what he has heard. `Upstream`: the server does it by
    itself, and usher must not do it twice."""


class Backend(Model):
    """What answers the callers."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "self.type != 'realtime' || has(self.realtime)",
                "type realtime needs the field realtime, with the url of the server",
            ),
            Rule(
                "self.type == 'realtime' || !has(self.realtime)",
                "the field realtime has a meaning only with type realtime: leave it out, or set the type",
            ),
        )
    )

    type: str = Field(default="echo", min_length=1, max_length=64, json_schema_extra=_BACKEND_NAME)
    """`echo`, `parrot`, `realtime`, or the name of an entry point `usher.backends` in the image."""
    realtime: Realtime | None = None
    """The server behind the backend `realtime`; with that type alone."""
    config: FreeForm = Field(default_factory=dict)
    """Configuration of the backend, no secrets."""


class TransceiverPoolSpec(Model):
    """The wanted state of a TransceiverPool."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(oldSelf.clusterID) || has(self.clusterID) && self.clusterID == oldSelf.clusterID",
                "clusterID can't be changed or taken away: old ufrags name it. Make a second pool instead",
            )
        )
    )

    replicas: int = Field(default=1, ge=0, le=10_000)
    """Number of transceivers; the scale subresource writes it."""
    cluster_id: int | None = Field(default=None, ge=1, le=MAX_CLUSTER, alias="clusterID")
    """Number of this pool among all that relays may share, in whatever cluster. Left out: the operator takes one of its
    range. Can't be changed."""
    image: Image = ""
    """Image of the transceiver. Empty: the operator's default."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""
    image_pull_secrets: list[LocalReference] = Field(
        default_factory=list, max_length=16, json_schema_extra=keyed_by("name")
    )
    """Secrets for the registry."""
    region: Region = ""
    """Region that these transceivers are in, such as `eu-west`."""
    media: Media = Field(default_factory=Media)
    """The sockets of a transceiver."""
    capacity: Capacity = Field(default_factory=Capacity)
    """How much one pod takes."""
    backend: Backend = Field(default_factory=Backend)
    """What answers the callers."""
    drain: Drain = Field(default_factory=Drain)
    """How a transceiver ends."""
    max_session_age: Duration = Field(default="2h", json_schema_extra=lasting("1m", "168h"))
    """Longest life of a call, 1m to 168h; it bounds how long an old key is kept."""
    idle_timeout: Duration = Field(default="0s", json_schema_extra=lasting("0s", "24h"))
    """Ends a call without speech and events for so long, up to 24h; `0s`: never."""
    keys: Keys = Field(default_factory=Keys)
    """Keys of ufrags and hop datagrams."""
    internal_token_secret_ref: LocalReference | None = None
    """Secret whose `token` opens the internal API; name it in the chart's `rbac.secretNames`, too. Left out: the
    operator makes one for the namespace."""
    strategy: Strategy = Field(default_factory=lambda: Strategy(max_surge="25%", max_unavailable=0))
    """How a rollout replaces pods; old ones then drain. Left out: surge 25%, unavailable 0."""
    disruption: Disruption = Field(default_factory=lambda: Disruption(max_unavailable=1))
    """How many pods a node drain may take at a time. Left out: one."""
    placement: Placement = Field(default_factory=Placement)
    """Where pods may run."""
    resources: Resources = Field(default_factory=lambda: Resources(requests={"cpu": "500m", "memory": "256Mi"}))
    """CPU and memory of a transceiver. Left out: requests of 500m CPU and 256Mi memory."""
    pod_template: PodTemplate = Field(default_factory=dict)
    """Merged into the pod last: metadata and spec of what no field here covers."""
    paused: bool = False
    """Leave everything as it is until this is false again."""


class TerminatingPod(Model):
    """A pod that ends once its calls have."""

    name: str = Field(max_length=253)
    """Name of the pod."""
    sessions: int | None = None
    """Calls it still has; absent when it does not answer."""


def _within(highest: int) -> BeforeValidator:
    """Read an id in a status. People can write a status, too: what can't be an id of ours is none."""
    return BeforeValidator(lambda value: value if isinstance(value, int) and 1 <= value <= highest else None)


class TransceiverPoolStatus(Model):
    """The observed state of a TransceiverPool."""

    observed_generation: int | None = None
    """Generation of the spec that this status is about."""
    cluster_id: Annotated[int | None, _within(MAX_CLUSTER)] = Field(
        default=None, alias="clusterID", json_schema_extra={"minimum": 1, "maximum": MAX_CLUSTER}
    )
    """Cluster id in use. Never changes."""
    replicas: int = 0
    """Active transceivers: neither draining nor ending."""
    ready_replicas: int = 0
    """Active transceivers that are ready."""
    updated_replicas: int = 0
    """Active transceivers of the newest template."""
    draining_replicas: int = 0
    """Transceivers that take no new calls and wait for their last one, until they are gone."""
    waiting_replicas: int = 0
    """Pods that wait for a pod id."""
    sessions: int = 0
    """Calls in all pods, rounded up to a step so that the status does not change with every call."""
    terminating: list[TerminatingPod] = Field(default_factory=list, max_length=32, json_schema_extra=keyed_by("name"))
    """Pods that end once their calls have, the first 32."""
    last_pod_id: Annotated[int | None, _within(MAX_POD)] = Field(
        default=None, alias="lastPodID", json_schema_extra={"minimum": 0, "maximum": MAX_POD}
    )
    """Highest pod id given."""
    selector: str = ""
    """Label selector of the active pods, for the scale subresource."""
    key_ids: list[str] = Field(default_factory=list, max_length=64, alias="keyIDs")
    """Keys in use and their state, such as `ice/A active 12d`; never the keys."""
    conditions: list[Condition] = Field(default_factory=list, max_length=16, json_schema_extra=keyed_by("type"))
    """Accepted, ClusterIDAllocated, Available, BackendReady, KeysReady, Progressing, Ready."""


class TransceiverPool(Model):
    """Pods that own calls: ICE, DTLS, SRTP, media and the backend."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            NAME_RULE,
            Rule(
                "!has(self.spec) || !has(self.spec.clusterID) || !has(self.status) || !has(self.status.clusterID) || "
                "self.spec.clusterID == self.status.clusterID",
                "spec.clusterID can't differ from the one in use (status.clusterID): set it when you make the pool",
            ),
        )
    )

    kind: ClassVar[str] = "TransceiverPool"
    plural: ClassVar[str] = "transceiverpools"

    metadata: Metadata
    spec: TransceiverPoolSpec = Field(default_factory=TransceiverPoolSpec)
    status: TransceiverPoolStatus = Field(default_factory=TransceiverPoolStatus)
