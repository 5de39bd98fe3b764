"""How both engines show a flow to people."""

from __future__ import annotations

from usher_core.ids import ClientPath, join_host_port
from usher_relay.engine.interface import FlowView
from usher_relay.hop_codec import route_of


def flow_view(
    path_key: bytes, route: bytes, state: str, verified_age: float | None, alive_age: float | None, ssrc: bytes
) -> FlowView:
    """Return a flow as `interface.FlowView`; ages in seconds, `ssrc` empty where it is not known."""
    path = ClientPath(path_key[4:], int.from_bytes(path_key[2:4]), int.from_bytes(path_key[:2]))
    return FlowView(
        client=join_host_port(path.host, path.port),
        listener=path.listener,
        route=str(route_of(route)),
        state=state,
        verified_age=None if verified_age is None else round(verified_age, 3),
        alive_age=None if alive_age is None else round(alive_age, 3),
        ssrc=ssrc.hex(),
    )
