"""The fake API server does what clients rely on: the tests of the operator are worth no more than this."""

import asyncio
import json

import aiohttp
import pytest

from tests.kube_fake import KubeFake
from tests.kube_objects import Json, selector
from tests.kube_workloads import Workloads

APPLY = {"Content-Type": "application/apply-patch+yaml"}


@pytest.fixture
async def api():
    async with KubeFake() as server:
        server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})
        yield server


@pytest.fixture
async def http(api):
    async with aiohttp.ClientSession(api.url) as session:
        yield session


def pod(name: str, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "labels": labels}}


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("", {}, True),
        ("a=1", {"a": "1"}, True),
        ("a=1,b!=2", {"a": "1", "b": "2"}, False),
        ("a in (1, 2),b", {"a": "2", "b": ""}, True),
        ("a notin (1)", {}, True),
        ("!a", {"a": "1"}, False),
    ],
)
def test_label_selectors_mean_what_they_mean_in_kubernetes(text, labels, expected):
    assert selector(text)(labels) is expected


async def test_apply_removes_what_the_same_manager_no_longer_sends_and_keeps_what_others_sent(api, http):
    url = "/api/v1/namespaces/ns/configmaps/c?fieldManager="
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    for manager, data in (("one", {"a": "1", "b": "1"}), ("two", {"c": "2"}), ("one", {"a": "1"})):
        async with http.patch(url + manager, data=json.dumps({**body, "data": data}), headers=APPLY) as answer:
            assert answer.status in (200, 201)
    assert api.get("ConfigMap", "ns", "c")["data"] == {"a": "1", "c": "2"}


async def test_a_watch_tells_what_enters_and_leaves_its_selection(api, http):
    version = api.create(pod("a", x="1"))["metadata"]["resourceVersion"]
    query = {"watch": "true", "resourceVersion": version, "labelSelector": "x=2", "timeoutSeconds": "5"}
    async with http.get("/api/v1/pods", params=query) as stream:
        api.change("Pod", "ns", "a", lambda body: body["metadata"].update(labels={"x": "2"}))
        api.change("Pod", "ns", "a", lambda body: body["metadata"].update(labels={"x": "3"}))
        events = [json.loads(await stream.content.readline()) for _ in range(2)]
    assert [event["type"] for event in events] == ["ADDED", "DELETED"]


async def test_a_watch_from_a_forgotten_version_gets_410_and_idle_ones_get_bookmarks(http, api):
    query = {"watch": "true", "resourceVersion": "1", "allowWatchBookmarks": "true"}
    api._bookmark_every = 0.05
    async with http.get("/api/v1/pods", params=query) as stream:
        async with asyncio.timeout(5):
            while json.loads(await stream.content.readline())["type"] != "BOOKMARK":
                pass
    api.compact()
    async with http.get("/api/v1/pods", params=query) as stream:
        event = json.loads(await stream.content.readline())
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_a_replace_of_an_old_version_and_a_failed_test_are_refused(api, http):
    created = api.create(pod("a"))
    api.change("Pod", "ns", "a", lambda body: body["metadata"].update(labels={"x": "1"}))
    async with http.put("/api/v1/namespaces/ns/pods/a", json=created) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (409, "Conflict")
    operations = [{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}]
    async with http.patch(
        "/api/v1/namespaces/ns/pods/a", json=operations, headers={"Content-Type": "application/json-patch+json"}
    ) as answer:
        assert answer.status == 422
    async with http.delete("/api/v1/namespaces/ns/pods/a", json={"preconditions": {"uid": "other"}}) as answer:
        assert answer.status == 409


async def test_an_object_with_a_finalizer_goes_when_the_finalizer_does_and_takes_what_it_owns_along(api):
    owner = pod("owner")
    owner["metadata"]["finalizers"] = ["x/y"]
    uid = api.create(owner)["metadata"]["uid"]
    owned = pod("owned")
    owned["metadata"]["ownerReferences"] = [{"uid": uid, "name": "owner"}]
    api.create(owned)
    api.remove("Pod", "ns", "owner")
    assert api.get("Pod", "ns", "owner")["metadata"]["deletionTimestamp"]
    api.change("Pod", "ns", "owner", lambda body: body["metadata"].pop("finalizers"))
    assert api.all("Pod") == []


async def test_the_status_is_written_by_its_subresource_only_and_the_generation_counts_specs(api, http):
    api.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "ns"}})
    base = "/apis/apps/v1/namespaces/ns/deployments/d"
    merge = {"Content-Type": "application/merge-patch+json"}
    for path in (base, base + "/status"):
        body = json.dumps({"spec": {"replicas": 3}, "status": {"replicas": 1 if path == base else 2}})
        async with http.patch(path, data=body, headers=merge) as answer:
            assert answer.status == 200
    found = api.get("Deployment", "ns", "d")
    assert (found["spec"]["replicas"], found["status"]["replicas"], found["metadata"]["generation"]) == (3, 2, 2)


async def test_faults_strike_before_or_after_the_work(api, http):
    api.fail(503, verb="create", resource="pods")
    api.fail(0, verb="create", resource="pods", late=True)
    async with http.post("/api/v1/namespaces/ns/pods", json=pod("a")) as answer:
        assert answer.status == 503
    with pytest.raises(aiohttp.ClientError):
        await http.post("/api/v1/namespaces/ns/pods", json=pod("a"))
    assert [found["metadata"]["name"] for found in api.all("Pod")] == ["a"]


async def test_workloads_run_pods_without_gates_and_shrink_by_deletion_cost(api):
    Workloads(api)
    template = {"metadata": {"labels": {"x": "1"}}, "spec": {"schedulingGates": [{"name": "g"}]}}
    api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d", "namespace": "ns"},
            "spec": {"replicas": 2, "template": template},
        }
    )
    first, second = await api.until(lambda: len(found := api.all("Pod")) == 2 and found, "two gated pods")
    assert first["status"]["phase"] == "Pending"
    for found in (first, second):
        api.change("Pod", "ns", found["metadata"]["name"], lambda body: body["spec"].pop("schedulingGates"))
    await api.until(lambda: api.get("Deployment", "ns", "d")["status"]["readyReplicas"] == 2, "both ready")
    cost = {"controller.kubernetes.io/pod-deletion-cost": "-1"}
    api.change("Pod", "ns", second["metadata"]["name"], lambda body: body["metadata"].update(annotations=cost))
    api.change("Deployment", "ns", "d", lambda body: body["spec"].update(replicas=1))
    await api.until(lambda: len(api.all("Pod")) == 1, "one pod")
    assert api.all("Pod")[0]["metadata"]["name"] == first["metadata"]["name"]
