"""A RelayPool with Redis: what its relays are told, and what the pool says of its Secrets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator_keys import NOW
from tests.operator_relays import DEFAULTS, relay_pool, with_ingress
from usher_operator.actions import Apply, Plan
from usher_operator.plan.relay_pool import plan_relay_pool
from usher_operator.plan.secret_refs import named_secrets
from usher_operator.render.relay import relay_workload
from usher_relay.settings import RelaySettings
from usher_shell.redis_client import redis_client

LB = {"ip": "203.0.113.10"}
BARE = {"urlSecretRef": {"name": "redis", "key": "url"}}
FULL = {**BARE, "caSecretRef": {"name": "authority", "key": "ca.crt"}}
THERE = {"redis": frozenset({"url"}), "authority": frozenset({"ca.crt"})}


def pod_spec(redis: dict[str, Any] | None) -> Any:
    pool = relay_pool(redis=redis) if redis else relay_pool()
    return relay_workload(pool, DEFAULTS)["spec"]["template"]["spec"]


def variables(redis: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in pod_spec(redis)["containers"][0]["env"]}


def plan(redis: dict[str, Any], **seen: Any) -> Plan:
    pool = relay_pool(redis=redis)
    return plan_relay_pool(pool, with_ingress(pool, LB, **seen), NOW, DEFAULTS)


def condition(outcome: Plan, kind: str) -> tuple[str, str, str]:
    found = next(each for each in outcome.status["conditions"] if each["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_the_url_which_has_a_password_stands_in_no_object_but_its_secret() -> None:
    told = variables(BARE)["USHER_REDIS_URL"]
    assert told == {"name": "USHER_REDIS_URL", "valueFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}
    assert not {"USHER_REDIS_URL", "SSL_CERT_FILE"} & set(variables(None))


def test_the_relay_takes_the_url_as_a_file_with_one_line_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "rediss://:secret@redis.example.com:6379/0\n"
    for name, variable in variables(FULL).items():
        monkeypatch.setenv(name, variable.get("value", url))
    assert set(variables(FULL)) - {"SSL_CERT_FILE"} <= {f"USHER_{name.upper()}" for name in RelaySettings.model_fields}
    read = RelaySettings().redis_url
    assert read is not None
    client = redis_client(read.get_secret_value(), max_connections=1, connect_within=1.0, answer_within=1.0)
    assert client.connection_pool.connection_kwargs["host"] == "redis.example.com"


def test_an_authority_of_ones_own_is_a_file_that_openssl_reads() -> None:
    spec = pod_spec(FULL)
    assert variables(FULL)["SSL_CERT_FILE"]["value"] == "/etc/usher/redis-ca/ca.crt"
    (volume,) = (each for each in spec["volumes"] if each["name"] == "redis-ca")
    assert volume["secret"]["secretName"] == "authority"
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    (mount,) = (each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "redis-ca")
    assert (mount["mountPath"], mount["readOnly"]) == ("/etc/usher/redis-ca", True)
    assert "SSL_CERT_FILE" not in variables(BARE)


def test_secrets_and_keys_that_are_missing_are_named_with_their_field() -> None:
    outcome = plan(FULL)
    assert condition(outcome, "RedisReady")[:2] == condition(outcome, "Ready")[:2] == ("False", "SecretMissing")
    assert "Secret redis of spec.redis.urlSecretRef does not exist in namespace calls" in condition(outcome, "Ready")[2]
    outcome = plan(FULL, secrets={**THERE, "authority": frozenset({"tls.crt"})})
    status, reason, message = condition(outcome, "RedisReady")
    assert (status, reason) == ("False", "SecretKeyMissing")
    assert "Secret authority of spec.redis.caSecretRef" in message
    outcome = plan(FULL, secrets=THERE)
    assert condition(outcome, "RedisReady")[:2] == ("True", "SecretsFound")
    assert condition(outcome, "Ready")[0] == "True"


def test_a_url_that_the_operator_may_not_read_stops_nothing() -> None:
    outcome = plan(BARE, secrets_forbidden=frozenset({"redis"}))
    assert condition(outcome, "RedisReady")[:2] == ("Unknown", "SecretForbidden")
    assert condition(outcome, "Ready")[0] == "True"


def test_a_missing_secret_changes_nothing_of_what_runs_and_a_pool_without_redis_has_no_such_condition() -> None:
    assert [each for each in plan(BARE).actions if isinstance(each, Apply)] == []
    pool = relay_pool()
    outcome = plan_relay_pool(pool, with_ingress(pool, LB), NOW, DEFAULTS)
    assert "RedisReady" not in {each["type"] for each in outcome.status["conditions"]}


@pytest.mark.parametrize(("redis", "names"), [(None, []), (BARE, ["redis"]), (FULL, ["authority", "redis"])])
def test_the_operator_looks_at_the_secrets_that_the_pool_names(redis: dict[str, Any] | None, names: list[str]) -> None:
    assert named_secrets(relay_pool(redis=redis) if redis else relay_pool()) == names
