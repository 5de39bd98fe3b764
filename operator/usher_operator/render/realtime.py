"""What a transceiver is told of the server behind its backend `realtime`: settings, and files for what is secret."""

from __future__ import annotations

from usher_operator.api.transceiver_pool import Realtime
from usher_operator.render import pod

KEY_PATH = "/etc/usher/realtime-key"
KEY_FILE = "api-key"
HEADERS_PATH = "/etc/usher/realtime-headers"
HEADERS_FILE = "headers.json"


def realtime_environment(realtime: Realtime) -> dict[str, str]:
    """Return the settings of a transceiver by the names of their environment variables."""
    values = {"USHER_REALTIME_URL": realtime.url, "USHER_REALTIME_TRUNCATE": realtime.truncate.lower()}
    if realtime.model:
        values["USHER_REALTIME_MODEL"] = realtime.model
    if realtime.api_key_secret_ref is not None:
        values["USHER_REALTIME_API_KEY_FILE"] = f"{KEY_PATH}/{KEY_FILE}"
    if realtime.headers_secret_ref is not None:
        values["USHER_REALTIME_HEADERS_FILE"] = f"{HEADERS_PATH}/{HEADERS_FILE}"
    return values


def realtime_mounts(realtime: Realtime) -> list[pod.Mount]:
    """Return the mounts of the files that these settings name. A kubelet brings what changes in a Secret."""
    mounts = []
    if (key := realtime.api_key_secret_ref) is not None:
        mounts.append(pod.secret_mount("realtime-key", KEY_PATH, key.name, key.key, KEY_FILE))
    if (headers := realtime.headers_secret_ref) is not None:
        mounts.append(pod.secret_mount("realtime-headers", HEADERS_PATH, headers.name, headers.key, HEADERS_FILE))
    return mounts
