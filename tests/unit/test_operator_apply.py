"""Carrying out plans: in order, up to the first failure that others rest on."""

import asyncio
from typing import Any

import httpx
import pytest
from kubernetes.aio.client import Configuration

from tests.kube_fake import KubeFake
from usher_core.internal_api import Load
from usher_operator.actions import Apply, Create, Delete, JsonPatch, Reference, Replace, SetDrain, Tell
from usher_operator.apply import MAX_FAULTS, Applier, Outcome, Subject
from usher_operator.kube import ConflictError, HttpKubeApi, NotLeaderError, UnauthorizedError, UnavailableError
from usher_operator.loads import PodClient

POOL = Subject(Reference("usher.fleet/v1alpha1", "TransceiverPool", "ns", "p"), "uid-of-p")


@pytest.fixture
async def server():
    async with KubeFake() as fake:
        fake.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})
        fake.create(
            {
                "apiVersion": "usher.fleet/v1alpha1",
                "kind": "TransceiverPool",
                "metadata": {"name": "p", "namespace": "ns"},
            }
        )
        yield fake


class Rig:
    def __init__(self, server: KubeFake) -> None:
        configuration = Configuration()
        configuration.host = server.url
        self.may_write = True
        self.now = 1e9
        self.asked: list[tuple[str, str]] = []
        self.silent: set[str] = set()
        self.hanging: asyncio.Event | None = None
        self.api = HttpKubeApi(configuration, may_write=lambda: self.may_write)
        self.pods = PodClient(httpx.MockTransport(self._answer))
        self.applier = Applier(self.api, self.pods, lambda: self.now)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((str(request.url), request.headers["Authorization"]))
        if self.hanging is not None:
            await self.hanging.wait()
        if request.url.host in self.silent:
            raise httpx.ConnectError("no answer")
        load = Load(sessions=0, max_sessions=1, draining=True, accepts=False)
        return httpx.Response(200, content=load.model_dump_json())

    async def do(self, *actions: Any) -> Any:
        return await self.applier.carry_out(actions, POOL, "token-of-pool")


@pytest.fixture
async def rig(server):
    rig = Rig(server)
    yield rig
    await rig.api.close()
    await rig.pods.close()


def config_map(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "ns", **more}}


def deployment(replicas: int, image: str) -> dict[str, Any]:
    metadata = {"name": "d", "namespace": "ns", "annotations": {"round": "0"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"replicas": replicas, "image": image},
    }


def target(name: str) -> Reference:
    return Reference("v1", "ConfigMap", "ns", name)


async def test_every_action_does_what_it_says(server, rig):
    await rig.do(Apply({**config_map("a"), "data": {"x": "1"}}), Create(config_map("b")))
    b = server.get("ConfigMap", "ns", "b")
    await rig.do(
        Replace({**b, "data": {"y": "2"}}),
        JsonPatch(target("a"), ({"op": "replace", "path": "/data/x", "value": "3"},)),
    )
    assert server.get("ConfigMap", "ns", "a")["data"] == {"x": "3"}
    assert server.get("ConfigMap", "ns", "b")["data"] == {"y": "2"}
    await rig.do(Delete(target("b"), b["metadata"]["uid"]), SetDrain("pod", "http://127.0.0.1:7280", drain=True))
    assert server.get("ConfigMap", "ns", "b") is None
    assert rig.asked == [("http://127.0.0.1:7280/internal/v1/drain", "Bearer token-of-pool")]


@pytest.mark.parametrize(
    "losing",
    [
        Create(config_map("a")),
        Replace(config_map("a", resourceVersion="1")),
        JsonPatch(target("a"), ({"op": "test", "path": "/metadata/resourceVersion", "value": "1"},)),
        Delete(target("a"), "another uid"),
    ],
    ids=lambda action: type(action).__name__,
)
async def test_a_conflict_ends_the_course(server, rig, losing):
    server.create(config_map("a"))
    with pytest.raises(ConflictError):
        await rig.do(losing, Create(config_map("b")))
    assert server.get("ConfigMap", "ns", "b") is None


async def test_a_refused_child_is_told_and_the_rest_is_done(server, rig):
    server.fail(422, verb="apply", message="data: too long")
    [fault] = (await rig.do(Apply(config_map("a")), Create(config_map("b")))).faults
    assert fault.reason == "Refused"
    assert "refuses ConfigMap ns/a; change what spec of this pool sets there" in fault.message
    assert fault.message.endswith("the last good state goes on meanwhile: data: too long")
    assert server.get("ConfigMap", "ns", "b") is not None


@pytest.mark.parametrize("code", [403, 422])
async def test_nothing_is_done_on_a_lease_that_was_refused(server, rig, code):
    server.fail(code, verb="create", resource="configmaps")
    actions = (Create(config_map("lease")), JsonPatch(target("pod"), ()), Create(config_map("b")))
    [fault] = (await rig.do(*actions)).faults
    assert fault.reason == ("Forbidden" if code == 403 else "Refused")
    assert [call.verb for call in server.writes()] == ["create"]


@pytest.mark.parametrize("code", [409, 422, 403])
async def test_a_patch_that_stands_alone_stops_nothing_when_it_fails(server, rig, code):
    for name in "ab":
        server.create(config_map(name))
    server.fail(code, verb="patch", name="a")
    add = ({"op": "add", "path": "/data", "value": {"x": "1"}},)
    outcome = await rig.do(*(JsonPatch(target(name), add, stands_alone=True) for name in "ab"))
    assert server.get("ConfigMap", "ns", "b")["data"] == {"x": "1"}
    # An answer of 422 without causes is a `test` that failed.
    assert outcome.lost == (() if code == 403 else ("ConfigMap ns/a",))
    assert [told.reason for told in outcome.faults] == (["Forbidden"] if code == 403 else [])


async def test_patches_that_stand_alone_go_several_at_a_time_once_all_before_them_is_done(server, rig):
    for number in range(20):
        server.create(config_map(f"pod-{number}"))
    server.fail(500, verb="patch", name="pod-0", delay=20)
    add = ({"op": "add", "path": "/data", "value": {"x": "1"}},)
    patches = [JsonPatch(target(f"pod-{number}"), add, stands_alone=True) for number in range(20)]
    course = asyncio.create_task(rig.do(Create(config_map("lease")), *patches))
    rest = [("ConfigMap", "ns", f"pod-{number}") for number in range(1, 20)]
    await server.until(
        lambda: all(server.get(*each).get("data") for each in rest), "one that is slow holds up no other"
    )
    assert [call.verb for call in server.writes()][:2] == ["create", "patch"]
    course.cancel()
    with pytest.raises(asyncio.CancelledError):
        await course


async def test_when_nothing_more_can_be_done_patches_that_stand_alone_end_too(server, rig, monkeypatch):
    begun: list[Reference] = []
    patch = rig.api.json_patch

    async def noted(to: Reference, operations: Any) -> Any:
        begun.append(to)
        return await patch(to, operations)

    # What was sent may still reach the server afterwards, so that is no measure of what was begun.
    monkeypatch.setattr(rig.api, "json_patch", noted)
    for number in range(50):
        server.create(config_map(f"pod-{number}"))
    server.fail(503, verb="patch", name="pod-0")
    add = ({"op": "add", "path": "/data", "value": {"x": "1"}},)
    with pytest.raises(UnavailableError):
        await rig.do(*(JsonPatch(target(f"pod-{number}"), add, stands_alone=True) for number in range(50)))
    done = len(begun)
    assert len(server.writes()) <= done < 50
    await asyncio.sleep(0)
    assert len(begun) == done


async def test_of_many_refusals_some_are_told(server, rig):
    server.fail(403, verb="patch", times=100)
    patches = (JsonPatch(target(f"pod-{number}"), (), stands_alone=True) for number in range(100))
    assert len((await rig.do(*patches)).faults) == MAX_FAULTS


async def test_a_login_that_is_not_accepted_is_no_missing_right(server, rig):
    server.fail(401, message="Unauthorized", times=2)
    with pytest.raises(UnauthorizedError, match="does not accept the operator's login, its token has expired"):
        await rig.do(Apply(config_map("a")))


async def test_a_silent_transceiver_holds_up_only_what_waits_for_it(server, rig):
    rig.silent.add("127.0.0.1")
    drains = [SetDrain(f"pod-{number}", f"http://127.0.0.{number}:7280", drain=True) for number in range(1, 4)]
    add = ({"op": "add", "path": "/data", "value": {"x": "1"}},)
    for name in "ab":
        server.create(config_map(name))
    waits, goes = JsonPatch(target("a"), add, ("pod-2", "pod-1")), JsonPatch(target("b"), add, ("pod-2",))
    outcome = await rig.do(*drains, waits, goes, Create(config_map("c")), Tell("Normal", "Scaled", "to 2"))
    assert [told.partition(":")[0] for told in outcome.silent] == ["pod-1"]
    assert len(rig.asked) == 3
    assert "data" not in server.get("ConfigMap", "ns", "a")
    assert server.get("ConfigMap", "ns", "b")["data"] == {"x": "1"}
    assert server.get("ConfigMap", "ns", "c") is not None
    assert len(server.all("Event")) == 1


async def test_all_drains_have_one_time_limit_together(rig, monkeypatch):
    monkeypatch.setattr("usher_operator.apply.DRAINS_S", 0.05)
    rig.hanging = asyncio.Event()
    outcome = await rig.do(*(SetDrain(f"pod-{number}", "http://127.0.0.1:7280", drain=True) for number in range(200)))
    assert len(outcome.silent) == 200


async def test_an_apply_that_keeps_a_field_takes_what_is_there_and_not_what_was_seen(server, rig):
    kept = (("spec", "replicas"), ("metadata", "annotations", "round"))
    manifest = deployment(replicas=2, image="old:1")
    await rig.do(Apply(manifest, kept))
    assert server.get("Deployment", "ns", "d")["spec"]["replicas"] == 2

    def another_operator_resizes(body: Any) -> None:
        body["spec"]["replicas"] = 5
        body["metadata"]["annotations"]["round"] = "1"

    server.change("Deployment", "ns", "d", another_operator_resizes)
    await rig.do(Apply(deployment(replicas=2, image="new:1"), kept))
    found = server.get("Deployment", "ns", "d")
    assert (found["spec"]["replicas"], found["metadata"]["annotations"]["round"]) == (5, "1")
    assert found["spec"]["image"] == "new:1"


async def test_an_apply_that_keeps_a_field_is_a_compare_and_swap_that_is_tried_again(server, rig):
    kept = (("spec", "replicas"),)
    await rig.do(Apply(deployment(replicas=2, image="old:1"), kept))
    read = rig.api.get

    async def read_and_then_it_changes(where: Reference) -> Any:
        found = await read(where)
        if resized:
            server.change("Deployment", "ns", "d", lambda body: body["spec"].update(replicas=resized.pop()))
        return found

    resized = [7]
    rig.api.get = read_and_then_it_changes
    await rig.do(Apply(deployment(replicas=2, image="new:1"), kept))
    spec = server.get("Deployment", "ns", "d")["spec"]
    assert (spec["replicas"], spec["image"]) == (7, "new:1")


async def test_an_object_that_is_gone_needs_no_patch_and_no_deletion(rig):
    assert await rig.do(JsonPatch(target("gone"), ()), Delete(target("gone"), "u")) == Outcome()


async def test_the_same_event_is_posted_once_in_a_while(server, rig):
    for _ in range(3):
        await rig.do(Tell("Normal", "Scaled", "to 2"))
    assert len(server.all("Event")) == 1
    rig.now += 601
    await rig.do(Tell("Normal", "Scaled", "to 2"), Tell("Warning", "Other", "x" * 5000))
    events = server.all("Event")
    assert len(events) == 3
    assert max(len(event["message"]) for event in events) == 1024
    assert events[0]["involvedObject"]["uid"] == "uid-of-p"


async def test_an_event_that_cannot_be_posted_stops_nothing(server, rig):
    server.fail(403, resource="events")
    assert await rig.do(Tell("Normal", "Scaled", "to 2"), Create(config_map("b"))) == Outcome()
    assert server.get("ConfigMap", "ns", "b") is not None


async def test_a_status_is_written_only_when_it_differs_also_from_what_the_server_made_of_it(server, rig):
    await rig.applier.write_status(POOL, {"replicas": 1}, None)
    await rig.applier.write_status(POOL, {"replicas": 1}, {"replicas": 1})
    assert len(server.writes()) == 1
    await rig.applier.write_status(POOL, {"replicas": 2}, {"replicas": 1})
    assert server.get("TransceiverPool", "ns", "p")["status"] == {"replicas": 2}


async def test_without_the_lease_nothing_is_written_and_reading_goes_on(server, rig):
    rig.may_write = False
    with pytest.raises(NotLeaderError):
        await rig.do(Create(config_map("b")))
    assert await rig.api.get(target("b")) is None
    assert server.writes() == []


async def test_a_server_that_hangs_up_is_unavailable(server, rig):
    server.fail(0, times=5)  # the client tries a broken connection once more
    with pytest.raises(UnavailableError):
        await rig.api.get(target("a"))
