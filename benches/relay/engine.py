"""An engine of the relay in a process of its own, without admin HTTP and files, for benches/relay/run.py.

python benches/relay/engine.py native|python HOLD MOST-FLOWS ROLE TRANSCEIVER-IP PORT...: says its port, then its counts
for each line of stdin, and ends with it. HOLD is the seconds that a packet may wait for others to share a hop datagram
with, or `apart`: each has its own. ROLE is alone, home (says its trunk's port, too), or ingress=PORT: that of the home
relay's trunk.
"""

import base64
import json
import sys
from typing import Literal

from usher_core.keys import parse_key_file
from usher_core.logs import configure
from usher_core.routes import parse_route_file
from usher_relay.counters import Traffic
from usher_relay.engine.interface import EngineConfig
from usher_relay.engine.select import select_engine
from usher_relay.listeners import parse_listener
from usher_relay.main import SWITCH_INTERVAL
from usher_relay.state import Limits
from usher_relay.trunk.peer_table import PeerAddresses
from usher_relay.trunk.rendezvous import PLACES

FIRST_POD = 17
HOME_CLUSTER, INGRESS_CLUSTER = 1, 9
BUFFER = 4 << 20
ENGINES: dict[str, Literal["native", "python"]] = {"native": "native", "python": "python"}


def text(first: int, length: int) -> str:
    """Return a key as wire.h has it."""
    return base64.b64encode(bytes(range(first, first + length))).decode()


def main() -> None:
    name, hold, most_flows, role, host, *ports = sys.argv[1:]
    role, _, trunk_port = role.partition("=")
    configure("console", "warning")
    sys.setswitchinterval(SWITCH_INTERVAL)
    ice = {"letter": "u", "clusters": [1], "ufrag_key": text(1, 16), "password_key": text(2, 32)}
    other_end = {"home": INGRESS_CLUSTER, "ingress": HOME_CLUSTER}.get(role, 77)
    hops = [{"id": 1, "key": text(0, 16)}, {"id": 2, "scope": other_end, "key": text(100, 16)}]
    keys = parse_key_file(json.dumps({"version": 1, "ice": [ice], "hop": hops}))
    pods = [{"cluster": 1, "pod": FIRST_POD + nth, "udp": f"{host}:{port}"} for nth, port in enumerate(ports)]
    if role == "ingress":
        pods = []
    config = EngineConfig(
        listeners=(parse_listener("1=0.0.0.0:0"),),
        upstream="0.0.0.0",
        limits=Limits(max_flows=int(most_flows)),
        hop_mtu=0,
        receive_buffer=BUFFER,
        send_buffer=BUFFER,
        workers=1,
        bundle=hold != "apart",
        bundle_hold=0.0 if hold == "apart" else float(hold),
        trunk=("127.0.0.1", 0) if role == "home" else None,
        with_peers=role == "ingress",
    )
    engine = select_engine(ENGINES[name], config, keys)
    engine.set_routes(parse_route_file(json.dumps({"version": 1, "transceivers": pods})))
    if role == "ingress":
        engine.set_peers({HOME_CLUSTER: PeerAddresses((("127.0.0.1", int(trunk_port)),), (0,) * PLACES)})
    engine.start()
    try:
        ready = {"port": int(engine.listening[1].rpartition(":")[2])}
        if engine.trunk is not None:
            ready["trunk"] = int(engine.trunk.rpartition(":")[2])
        print(json.dumps(ready), flush=True)
        for _ in sys.stdin:
            counters = engine.snapshot().counters
            drops = {str(reason): count for reason, count in counters.drops.items() if count}
            print(json.dumps({"up": of(counters.uplink), "down": of(counters.downlink), "drops": drops}), flush=True)
    finally:
        engine.stop()


def of(traffic: Traffic) -> list[int]:
    return [traffic.batches, traffic.received, traffic.forwarded]


if __name__ == "__main__":
    main()
