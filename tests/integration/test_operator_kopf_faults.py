"""The operator with kopf, where Secrets, pods and hands do what they should not: the rest goes on."""

from collections.abc import AsyncIterator

import pytest

from tests.operator_rig import NAMESPACE, Rig, operator_rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with operator_rig() as made:
        yield made


async def test_secrets_that_only_the_operator_may_not_read_stop_no_pod(rig):
    for name in ("my-keys", "my-token"):
        rig.api.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}})
        rig.api.fail(403, verb="get", resource="secrets", name=name, times=1_000_000)
    async with rig.operator():
        rig.pool(keys={"secretRef": {"name": "my-keys"}}, internalTokenSecretRef={"name": "my-token"})
        rig.relay_pool(keys={"secretRef": {"name": "my-keys"}})
        forbidden = ("False", "SecretForbidden")
        await rig.api.until(lambda: rig.condition("KeysReady") == forbidden, "the pool says which right is missing")
        await rig.api.until(lambda: len(rig.ids()) == 3, "its pods get ids all the same")
        relay = ("r", "RelayPool")
        await rig.api.until(lambda: rig.condition("KeysReady", *relay) == forbidden, "so does the RelayPool")
        await rig.api.until(lambda: rig.condition("Available", *relay)[0] == "True", "whose relays run")


async def test_pods_wait_for_the_key_in_a_secret_and_not_only_for_the_secret(rig):
    metadata = {"name": "my-keys", "namespace": NAMESPACE}
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"keys": "eA==", "keys.json": ""}}
    async with rig.operator():
        rig.pool(keys={"secretRef": {"name": "my-keys"}})
        await rig.api.until(lambda: rig.condition("KeysReady") == ("False", "SecretMissing"), "there is no Secret")
        rig.api.create(made)
        lacks_its_key = ("False", "SecretKeyMissing")
        await rig.api.until(lambda: rig.condition("KeysReady") == lacks_its_key, "there is a Secret without a value")
        assert rig.ids() == []
        rig.api.change("Secret", NAMESPACE, "my-keys", lambda body: body.update(data={"keys.json": "eA=="}))
        await rig.ready()


async def test_ids_wait_for_no_answer_of_a_pod(rig, monkeypatch):
    async with rig.operator():
        rig.pool()
        await rig.ready()
    for limit in ("usher_operator.loads.REQUEST_S", "usher_operator.loads.Loads.LOOK_S"):
        monkeypatch.setattr(limit, 60.0)
    rig.transceivers.hangs_at = "/"
    rig.api.change("Deployment", NAMESPACE, "p-transceiver", lambda body: body["spec"].update(replicas=6))
    await rig.api.until(lambda: len(rig.api.all("Pod")) == 6, "three more pods wait")
    rig.scale(6)
    async with rig.operator():
        await rig.api.until(lambda: len(set(rig.ids())) == 6, "all have ids")


async def test_a_look_at_keys_that_fails_by_a_fault_of_ours_keeps_the_pool_from_nothing_else(rig, monkeypatch):
    async with rig.operator():
        rig.pool()
        await rig.ready()

    async def fails(*_: object) -> None:
        raise ValueError("not thought of")

    monkeypatch.setattr("usher_operator.keys_keeper.KeysKeeper.current", fails)
    async with rig.operator():
        rig.scale(5)
        await rig.api.until(lambda: len(rig.api.all("Pod")) == 5, "there are two more")
        await rig.api.until(lambda: "not thought of" in str(rig.status()), "it is told")


@pytest.mark.parametrize("number", [70_000, 0, -1, 2**40])
async def test_a_cluster_id_written_into_a_status_by_hand_that_can_be_none_of_ours_harms_nobody(rig, number):
    async with rig.operator():
        rig.pool()
        rig.pool("q", replicas=1)
        await rig.ready()
        before = rig.status()["clusterID"]
        rig.api.change("TransceiverPool", NAMESPACE, "p", lambda body: body["status"].update(clusterID=number))
        rig.scale(4)
        await rig.api.until(lambda: len(rig.ids()) == 5, "the pool goes on")
        await rig.api.until(lambda: rig.status()["clusterID"] == before, "its id is the one that its Lease names")
        await rig.ready("q")


async def test_a_slow_look_at_keys_keeps_the_pool_from_nothing_else(rig, monkeypatch):
    async with rig.operator():
        rig.pool()
        await rig.ready()
    monkeypatch.setattr("usher_operator.loads.REQUEST_S", 60.0)
    rig.transceivers.hangs_at = "/keys"
    async with rig.operator():
        rig.scale(5)
        await rig.ready()
        await rig.api.until(lambda: len(set(rig.ids())) == 5, "there are two more")
        rig.scale(2)
        await rig.api.until(lambda: len(rig.api.all("Pod")) == 2, "three are gone")
        assert rig.condition("KeysReady")[0] == "True"


async def test_the_lease_of_a_deleted_pool_stays_so_that_one_of_its_name_counts_on(rig):
    async with rig.operator():
        rig.pool(replicas=2)
        await rig.ready()
        before, cluster = rig.ids(), rig.status()["clusterID"]
        rig.api.remove("TransceiverPool", NAMESPACE, "p")
        await rig.api.until(lambda: not rig.api.all("TransceiverPool") and not rig.api.all("Pod"), "all is gone", 20)
        lease = rig.api.get("Lease", "usher", f"usher-cluster-{cluster}")
        assert lease["spec"]["holderIdentity"] == f"{NAMESPACE}/p"
        assert int(lease["metadata"]["annotations"]["usher.fleet/last-pod-id"]) == max(before)
        rig.pool(replicas=2)
        await rig.ready()
        assert rig.status()["clusterID"] == cluster
        assert min(rig.ids()) > max(before)
