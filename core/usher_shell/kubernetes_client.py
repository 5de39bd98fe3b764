"""The Kubernetes API server: where it is, and questions that return plain JSON.

From the `kubernetes` package come the configuration (ServiceAccount, kubeconfig, exec plugins, certificates) and the
HTTP client, but not its models, which would be loaded and filled for nothing (docs/decisions/0010).
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from aiohttp.http_exceptions import HttpProcessingError
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.api_client import ApiClient

from usher_core.errors import LocalError, UsherError

Json = dict[str, Any]

CONNECT_S = 5.0
MAX_BODY = 64 << 20
"""Bytes of an answer. A page of a list is about 1 MB."""
MAX_MESSAGE = 1024
"""Characters of an error message that are kept: some quote the whole object."""
REASONS = {401: "unauthorized", 403: "forbidden", 404: "not_found", 410: "expired", 429: "busy"}


class KubernetesError(UsherError):
    """The API server did not answer, or with an error.

    Args:
        reason: a short constant, which may become a metric label.
        message: what was asked and what came back.
        status: HTTP status, 0 when none came.
    """

    def __init__(self, reason: str, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status


async def load_configuration() -> Configuration:
    """Return where the API server is and how to log in: the pod's ServiceAccount, else the kubeconfig.

    Raises LocalError when there is neither.
    """
    configuration = Configuration()
    # The package itself reads KUBECONFIG when it is imported, which may be too early.
    kubeconfig = os.environ.get("KUBECONFIG") or str(config.KUBE_CONFIG_DEFAULT_LOCATION)
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
            # It reads the token again each minute: kubelet renews it long before its end.
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        else:
            _expect_one_of(kubeconfig.split(os.pathsep))
            await config.load_kube_config(kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise LocalError(
            f"no way to the Kubernetes API: {' '.join(str(error).split()) or type(error).__name__}",
            f"run in a pod with a ServiceAccount, or set KUBECONFIG (tried {kubeconfig})",
        ) from None
    return configuration


def _expect_one_of(paths: list[str]) -> None:
    """Raise ConfigException when none of the files is there: the package would log that at each try."""
    if not any(Path(path).expanduser().is_file() for path in paths):
        raise config.ConfigException("no ServiceAccount, and no kubeconfig file")


class KubernetesReader:
    """Reads from one API server. Close it, or use it as a context manager.

    Raises LocalError when the certificates of `configuration` can't be used.
    """

    def __init__(self, configuration: Configuration) -> None:
        try:
            self._client = ApiClient(configuration)
        except (OSError, ssl.SSLError) as error:
            raise LocalError(f"the certificates for the Kubernetes API can't be used: {error}") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, path: str, query: Mapping[str, str], within: float) -> Json:
        """Return the JSON object at a path, within so many seconds. Raises KubernetesError."""
        limits = aiohttp.ClientTimeout(total=within, sock_connect=CONNECT_S)
        async with self._open(path, query, limits) as response:
            parts, size = [], 0
            async for part in response.content.iter_any():
                size += len(part)
                if size > MAX_BODY:
                    raise KubernetesError("malformed", f"GET {path}: more than {MAX_BODY} bytes")
                parts.append(part)
        return parse_object(b"".join(parts), path)

    async def lines(self, path: str, query: Mapping[str, str], silence: float) -> AsyncIterator[Json | None]:
        """Yield None once the answer has begun, then the JSON object of each line, until the server ends it in order.

        Raises KubernetesError, with reason `silent` when nothing came for `silence` seconds.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence)
        async with self._open(path, query, limits) as response:
            yield None
            while (line := await response.content.readline()).endswith(b"\n"):
                yield parse_object(line, path)

    @contextlib.asynccontextmanager
    async def _open(
        self, path: str, query: Mapping[str, str], limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            prepared = await self._client.param_serialize(
                method="GET",
                resource_path=path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            response = (await self._client.call_api(*prepared, _request_timeout=limits)).response
            # Closed and not released: an answer that is left half-way must not keep its connection.
            with contextlib.closing(response):
                if response.status >= 300:
                    raise await _refusal(response, path)
                yield response
        except aiohttp.ServerTimeoutError as error:
            raise KubernetesError("silent", f"GET {path}: the API server says nothing: {error}") from None
        except (aiohttp.ClientError, HttpProcessingError, config.ConfigException, OSError) as error:
            why = str(error) or type(error).__name__
            raise KubernetesError("unreachable", f"GET {path}: the API server does not answer: {why}") from None


async def _refusal(response: aiohttp.ClientResponse, path: str) -> KubernetesError:
    text = await response.content.read(MAX_MESSAGE * 4)
    message = text[:MAX_MESSAGE].decode(errors="replace")
    with contextlib.suppress(ValueError):
        parsed = json.loads(text)
        message = str(parsed.get("message", ""))[:MAX_MESSAGE] if isinstance(parsed, dict) else message
    reason = REASONS.get(response.status, "refused")
    return KubernetesError(reason, f"GET {path}: {message} ({response.status})", response.status)


def parse_object(text: bytes, path: str) -> Json:
    """Parse a JSON object. Raises KubernetesError."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise KubernetesError("malformed", f"GET {path}: the answer is no JSON object: {text[:80]!r}")
    return parsed
