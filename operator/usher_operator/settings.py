"""Settings of `usher operator`: flags, environment `USHER_*`, defaults, and the reason of each."""

from __future__ import annotations

import os
from typing import ClassVar, Self

from pydantic import Field, model_validator

from usher_core.ids import MAX_CLUSTER
from usher_core.settings import HostPort, ProgramSettings, TextList
from usher_operator.election import Timing
from usher_operator.plan.defaults import Defaults
from usher_operator.plan.keys import KeySettings

CLUSTERS_OF_EVERY_KEY = 64
DAY_S = 86_400.0
_USUAL = Timing()


class OperatorSettings(ProgramSettings):
    """Turn RelayPools and TransceiverPools into running relays and transceivers."""

    program: ClassVar[str] = "operator"

    namespaces: TextList = Field(
        default=(), description="namespace to serve (repeatable); none: the whole cluster, which needs ClusterRoles"
    )
    own_namespace: str = Field(
        default_factory=lambda: os.environ.get("POD_NAMESPACE", "default"),
        description="namespace of this operator and of the Lease that elects one of its replicas (default:"
        " environment POD_NAMESPACE)",
    )
    identity_namespace: str = Field(
        default="",
        description="namespace of the Leases of cluster ids (default: that of the operator); one for all operators"
        " whose pools share relays",
    )
    http: HostPort = Field(default="127.0.0.1:7290", description="HOST:PORT of /livez, /readyz, /metrics")
    relay_image: str = Field(default="", description="image of relays whose pool names none")
    transceiver_image: str = Field(default="", description="image of transceivers whose pool names none")
    image_pull_secrets: TextList = Field(
        default=(),
        description="Secret, in the namespace of the pool, with which images are pulled whose pool names no Secret"
        " (repeatable)",
    )
    first_cluster_id: int = Field(
        default=1, ge=1, le=MAX_CLUSTER, description="lowest cluster id for pools that pin none"
    )
    last_cluster_id: int = Field(
        default=1000, ge=1, le=MAX_CLUSTER, description="highest cluster id for pools that pin none"
    )
    rotate_keys_days: float = Field(
        default=30, ge=0, le=3650, description="days between rotations of the keys of a namespace; 0: on demand only"
    )
    lease_name: str = Field(default="usher-operator", min_length=1, description="Lease that elects a replica")
    lease_duration: float = Field(
        default=_USUAL.duration, ge=1, le=600, description="seconds of silence after which another replica takes over"
    )
    lease_renew_deadline: float = Field(
        default=_USUAL.renew_deadline,
        gt=0,
        le=400,
        description="seconds after which a leader that can't renew the Lease ends; two thirds of --lease-duration at"
        " most, for clocks that run differently",
    )
    lease_retry: float = Field(default=_USUAL.retry, gt=0, le=60, description="seconds between looks at the Lease")

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if self.first_cluster_id > self.last_cluster_id:
            raise ValueError("--first-cluster-id is greater than --last-cluster-id")
        if self.lease_renew_deadline > self.lease_duration / 1.5 + 1e-9:
            raise ValueError("--lease-renew-deadline is two thirds of --lease-duration at most")
        if self.lease_retry >= self.lease_renew_deadline:
            raise ValueError("--lease-retry is less than --lease-renew-deadline")
        return self

    @property
    def timing(self) -> Timing:
        """The times of the election."""
        return Timing(self.lease_duration, self.lease_renew_deadline, self.lease_retry)

    @property
    def defaults(self) -> Defaults:
        """What plans are told."""
        return Defaults(
            relay_image=self.relay_image,
            transceiver_image=self.transceiver_image,
            identity_namespace=self.identity_namespace or self.own_namespace,
            first_cluster_id=self.first_cluster_id,
            last_cluster_id=self.last_cluster_id,
            namespaces=frozenset(self.namespaces),
            image_pull_secrets=self.image_pull_secrets,
        )

    @property
    def keys(self) -> KeySettings:
        """What the plan of keys is told."""
        ids = range(self.first_cluster_id, self.last_cluster_id + 1)
        return KeySettings(self.rotate_keys_days * DAY_S, tuple(ids[:CLUSTERS_OF_EVERY_KEY]))
