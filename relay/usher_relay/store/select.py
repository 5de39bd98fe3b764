"""The store of mappings that the settings name, connected to the engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from usher_core.keys import KeyFile
from usher_relay.engine.interface import Engine
from usher_relay.settings import RelaySettings

if TYPE_CHECKING:
    from usher_relay.store.recovery import Recovery


def select_store(settings: RelaySettings, engine: Engine, keys: KeyFile) -> Recovery | None:
    """Return what keeps mappings, or None without `--redis-url`.

    Raises LocalError when the URL can't be read or there is no store key.
    """
    door = engine.store_door
    if settings.redis_url is None or door is None:
        return None
    # Imported here: relays without Redis need not pay for its client.
    from usher_relay.store.counters import StoreCounters  # noqa: PLC0415
    from usher_relay.store.mapping import Mappings  # noqa: PLC0415
    from usher_relay.store.recovery import Recovery  # noqa: PLC0415
    from usher_relay.store.redis_store import (  # noqa: PLC0415
        ANSWER_WITHIN,
        CONNECT_WITHIN,
        MAX_CONNECTIONS,
        RedisStore,
    )
    from usher_shell.redis_client import redis_client  # noqa: PLC0415

    counters = StoreCounters()
    client = redis_client(
        settings.redis_url.get_secret_value(),
        max_connections=MAX_CONNECTIONS,
        connect_within=CONNECT_WITHIN,
        answer_within=ANSWER_WITHIN,
    )
    store = RedisStore(client, settings.redis_timeout, counters, time.monotonic)
    listeners = [listener.id for listener in settings.listeners]
    return Recovery(door, store, Mappings(keys), listeners, settings.max_flows, counters)
