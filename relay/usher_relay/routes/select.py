"""Choice of the source of routes."""

from __future__ import annotations

from usher_relay.routes.source import RouteSource
from usher_relay.routes.static_file import StaticFileRoutes
from usher_relay.settings import RelaySettings


def select_routes(settings: RelaySettings) -> RouteSource:
    """Return the source that the settings name."""
    if settings.routes_file is not None:
        return StaticFileRoutes(settings.routes_file)
    # Imported here: it costs a relay 18 MB and 0.3 s, which those with a route file need not pay.
    from usher_relay.routes.pods import PodRoutes  # noqa: PLC0415

    return PodRoutes(settings.pods_namespace, settings.pods_selector)
