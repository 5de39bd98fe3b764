"""How each program of `usher up` is started: its arguments."""

from __future__ import annotations

import os
import time

from usher_cli.call.api import REGION_HEADER
from usher_cli.up.addresses import advertised_addresses
from usher_cli.up.places import ANY_PORT, Places
from usher_cli.up.pod_ids import PodIds
from usher_cli.up.run_directory import RunDirectory
from usher_cli.up.settings import UpSettings, region_name
from usher_core.ids import split_host_port

_BUILT_IN_BACKENDS = ("echo", "parrot")
"""What a caller may choose beside `--backend`."""
_KEYS_FILE = "USHER_API_KEYS_FILE"
"""Reaches signaling through the environment; then it is not keyless."""


class Arguments:
    """Arguments of `usher` for each program. Called at each start: addresses that were bound stay."""

    def __init__(self, settings: UpSettings, directory: RunDirectory, places: Places) -> None:
        self._settings = settings
        self._directory = directory
        self._places = places
        self._pod_ids = PodIds()

    def relay(self, region: int, name: str) -> list[str]:
        """A relay; its listener has the number of its region. Of several regions it has trunks to the others."""
        files = self._directory.of(region)
        trunks = []
        if self._settings.regions > 1:
            trunks.append(f"--peers-file={files.peers}")
            if region <= self._settings.clusters:
                trunks.append(f"--trunk={self._places.trunk(region, name)}")
        return [
            "relay",
            f"--listen={region}={self._places.udp(region)}",
            "--upstream=127.0.0.1",
            f"--admin={self._places.admin(name)}",
            f"--keys-file={files.relay_keys}",
            f"--routes-file={files.routes}",
            *trunks,
            f"--engine={self._settings.engine}",
            "--grace=0",
            *self._log(),
        ]

    def transceiver(self, region: int) -> list[str]:
        """A transceiver of the cluster with the number of its region."""
        return [
            "transceiver",
            f"--udp={ANY_PORT}",
            f"--http={ANY_PORT}",
            f"--keys-file={self._directory.of(region).transceiver_keys}",
            f"--token-file={self._directory.token}",
            f"--cluster={region}",
            f"--pod={self._pod_ids.next(time.time())}",
            f"--backend={self._settings.backend}",
            *self._log(),
        ]

    def signaling(self, region: int) -> list[str]:
        """Signaling; of several regions it advertises the ingress point of its own."""
        settings = self._settings
        host, port = split_host_port(self._places.udp(region))
        several = settings.regions > 1
        near = f"@{region_name(region)}" if several else ""
        advertised = advertised_addresses(host, port, settings.advertise)
        return [
            "signaling",
            f"--http={self._places.http(region)}",
            f"--keys-file={self._directory.signaling_keys}",
            f"--token-file={self._directory.token}",
            f"--routes-file={self._directory.routes}",
            *(f"--advertise={region}={address}{near}" for address in advertised),
            *(f"--relay-admin={admin}" for admin in self._places.admins()),
            *(f"--backends={name}" for name in dict.fromkeys([settings.backend, *_BUILT_IN_BACKENDS])),
            *(self._regions(region) if several else ()),
            *(["--keyless"] if settings.api_key is None and not os.environ.get(_KEYS_FILE) else []),
            *self._log(),
        ]

    def wan(self) -> list[str]:
        """The ways between regions."""
        links = self._places.links(self._settings.ingress)
        return [
            "wan",
            *(f"--link={link}" for link in links),
            f"--rtt={self._settings.wan}",
            "--jitter=0ms",
            "--loss=0",
            f"--admin={ANY_PORT}",
            *self._log(),
        ]

    def _regions(self, region: int) -> list[str]:
        # Whoever calls this machine plays the proxy that knows where callers are.
        return [
            f"--region={region_name(region)}",
            f"--region-header={REGION_HEADER}",
            "--trusted-proxies=127.0.0.0/8",
            "--trusted-proxies=::1/128",
        ]

    def _log(self) -> list[str]:
        return [f"--log-format={self._settings.log_format}", f"--log-level={self._settings.log_level}"]
