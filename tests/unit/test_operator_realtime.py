"""A TransceiverPool with the backend `realtime`: what its pods are told, and what the pool says of its Secrets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.transceiver_pools import CLUSTER, DEFAULTS, condition, make_plan, make_pod, make_pool, patches
from usher_operator import crd
from usher_operator.crd import Schema
from usher_operator.names import REVISION_LABEL
from usher_operator.plan.secret_refs import named_secrets
from usher_operator.render.transceiver import transceiver_deployment

URL = "wss://api.example.com/v1/realtime"
BARE = {"type": "realtime", "realtime": {"url": URL}}
FULL = {
    "type": "realtime",
    "realtime": {
        "url": URL,
        "model": "gpt-realtime",
        "apiKeySecretRef": {"name": "upstream", "key": "api-key"},
        "headersSecretRef": {"name": "more", "key": "headers"},
        "truncate": "Upstream",
    },
}
THERE = {"upstream": frozenset({"api-key", "other"}), "more": frozenset({"headers"})}


def template(backend: dict[str, Any]) -> dict[str, Any]:
    pool = make_pool({"backend": backend})
    found: dict[str, Any] = transceiver_deployment(pool, CLUSTER, DEFAULTS)["spec"]["template"]
    return found


def told(backend: dict[str, Any]) -> dict[str, str]:
    """What a transceiver is told of its upstream."""
    variables = template(backend)["spec"]["containers"][0]["env"]
    return {each["name"]: each["value"] for each in variables if each["name"].startswith("USHER_REALTIME_")}


def test_a_transceiver_is_told_its_upstream_and_reads_what_is_secret_from_files() -> None:
    assert told(FULL) == {
        "USHER_REALTIME_URL": URL,
        "USHER_REALTIME_MODEL": "gpt-realtime",
        "USHER_REALTIME_API_KEY_FILE": "/etc/usher/realtime-key/api-key",
        "USHER_REALTIME_HEADERS_FILE": "/etc/usher/realtime-headers/headers.json",
        "USHER_REALTIME_TRUNCATE": "upstream",
    }


def test_what_is_left_out_is_not_told() -> None:
    assert told(BARE) == {"USHER_REALTIME_URL": URL, "USHER_REALTIME_TRUNCATE": "usher"}
    assert told({"type": "echo"}) == {}


def test_only_the_named_keys_of_the_secrets_are_mounted_and_follow_a_rotation() -> None:
    spec = template(FULL)["spec"]
    volumes = {each["name"]: each["secret"] for each in spec["volumes"] if each["name"].startswith("realtime-")}
    assert volumes == {
        "realtime-key": {
            "secretName": "upstream",
            "defaultMode": 0o440,
            "items": [{"key": "api-key", "path": "api-key"}],
        },
        "realtime-headers": {
            "secretName": "more",
            "defaultMode": 0o440,
            "items": [{"key": "headers", "path": "headers.json"}],
        },
    }
    mounts = {each["name"]: each for each in spec["containers"][0]["volumeMounts"]}
    assert mounts["realtime-key"]["mountPath"] == "/etc/usher/realtime-key"
    assert mounts["realtime-headers"]["mountPath"] == "/etc/usher/realtime-headers"
    assert not any("subPath" in mount for mount in mounts.values()), "a kubelet never updates a sub-path"


@pytest.mark.parametrize("change", [{"url": "ws://other"}, {"model": "other"}, {"truncate": "Upstream"}])
def test_another_upstream_is_a_rollout(change: dict[str, str]) -> None:
    def revision(backend: dict[str, Any]) -> str:
        return str(template(backend)["metadata"]["labels"][REVISION_LABEL])

    assert revision(BARE) != revision({"type": "realtime", "realtime": {"url": URL, **change}})


# ---- conditions


def verdict(backend: dict[str, Any], **seen: Any) -> tuple[str, str, str]:
    found = condition(make_plan(make_pool({"backend": backend}), make_pod(gated=True), **seen), "BackendReady")
    return found["status"], found["reason"], found["message"]


def test_secrets_and_keys_that_are_missing_are_named_with_their_field() -> None:
    status, reason, message = verdict(FULL)
    assert (status, reason) == ("False", "SecretMissing")
    assert message == (
        "Secret upstream of spec.backend.realtime.apiKeySecretRef does not exist in namespace fleet: make it."
    )
    status, reason, message = verdict(FULL, secrets={**THERE, "more": frozenset({"Headers"})})
    assert (status, reason) == ("False", "SecretKeyMissing")
    assert "Secret more of spec.backend.realtime.headersSecretRef" in message
    assert "has no key headers" in message
    assert verdict(FULL, secrets=THERE)[:2] == ("True", "SecretsFound")


def test_pods_get_no_id_before_their_backend_has_its_secrets() -> None:
    pool = make_pool({"backend": FULL})
    plan = make_plan(pool, make_pod(gated=True, pool=pool))
    assert patches(plan, "Pod") == []
    assert condition(plan, "Ready")["reason"] == condition(plan, "Progressing")["reason"] == "SecretMissing"
    assert len(patches(make_plan(pool, make_pod(gated=True, pool=pool), secrets=THERE), "Pod")) == 1


def test_an_api_key_that_the_operator_may_not_read_stops_nothing() -> None:
    pool = make_pool({"backend": FULL})
    forbidden = frozenset(THERE)
    plan = make_plan(pool, make_pod(pool=pool), secrets_forbidden=forbidden)
    found = condition(plan, "BackendReady")
    assert (found["status"], found["reason"]) == ("Unknown", "SecretForbidden")
    assert "add upstream to rbac.secretNames of the chart. Pods mount it all the same." in found["message"]
    assert condition(plan, "Ready")["status"] == "True"
    waiting = make_plan(pool, make_pod(gated=True, pool=pool), secrets_forbidden=forbidden)
    assert len(patches(waiting, "Pod")) == 1


@pytest.mark.parametrize("backend", [{"type": "echo"}, BARE])
def test_a_backend_that_takes_nothing_from_secrets_has_no_condition(backend: dict[str, Any]) -> None:
    plan = make_plan(make_pool({"backend": backend}), make_pod())
    assert "BackendReady" not in {each["type"] for each in plan.status["conditions"]}


def test_the_operator_looks_at_no_secret_that_the_pool_does_not_name() -> None:
    assert named_secrets(make_pool()) == []
    assert named_secrets(make_pool({"backend": FULL})) == ["more", "upstream"]


# ---- what the API server checks; tests/e2e/test_crds.py asks a real one


def backend_schema() -> Schema:
    kind = next(kind for kind in crd.KINDS if kind.model.__name__ == "TransceiverPool")
    found: Schema = crd.schema(kind)["properties"]["spec"]["properties"]["backend"]
    return found


def pattern(field: str) -> str:
    """The regular expression of a field's rule."""
    (rule,) = backend_schema()["properties"]["realtime"]["properties"][field]["x-kubernetes-validations"]
    found = re.fullmatch(r"self\.matches\(r?'(.*)'\)", rule["rule"])
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "ws://model:8000",
        "wss://[2001:db8::7]:8443/",
        "wss://a.example/openai/realtime?api-version=2024-10-01&deployment=x",
        "ws://10.0.0.1?a=b@c",
    ],
)
def test_urls_of_websockets_are_taken(url: str) -> None:
    assert re.search(pattern("url"), url)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com",
        "wss://",
        "wss:///v1",
        "WSS://api.example.com",
        "wss://user:password@api.example.com/v1",
        "wss://api.example.com/v1 realtime",
        "wss://api.example.com/v1#part",
        "wss://api.example.com:65536/v1",
        "wss://api.example.com:/v1",
        "wss://2001:db8::7/v1",
        " wss://api.example.com",
    ],
)
def test_other_urls_are_not_nor_ones_with_a_password(url: str) -> None:
    assert not re.search(pattern("url"), url)


@pytest.mark.parametrize("name", ["", "gpt-realtime", "ft:gpt-4o:acme::7p4lURel", "org/model@main"])
def test_names_of_models_are_taken(name: str) -> None:
    assert re.search(pattern("model"), name)


@pytest.mark.parametrize("name", ["a b", "a&b=c", "-a", "a\u00e9", "a#b"])
def test_what_would_change_the_url_is_no_model(name: str) -> None:
    assert not re.search(pattern("model"), name)


def test_an_upstream_that_nobody_wrote_is_not_put_there() -> None:
    """A default would make each pool one with an upstream."""
    assert "default" not in backend_schema()["properties"]["realtime"]
    assert backend_schema()["default"] == {"type": "echo"}
    assert make_pool().spec.backend.realtime is None
