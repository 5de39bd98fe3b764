"""The Pod watch against an API server over real HTTP: what it publishes, and what it bears."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kube_fake import KubeFake
from tests.pod_objects import connect_to, transceiver_pod
from usher_core.errors import LocalError
from usher_core.ids import Route
from usher_core.routes import RouteTable
from usher_shell import object_watch
from usher_shell.object_watch import ObjectWatch
from usher_shell.pod_watch import PodWatch
from usher_shell.watched_file import SourceStatus

PODS = "/api/v1/namespaces/voice/pods"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_watch, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(object_watch, "MAX_PAUSE_S", 0.1)


@pytest.fixture
async def api() -> AsyncIterator[KubeFake]:
    async with KubeFake() as fake:
        yield fake


class Published:
    """A running Pod watch and the tables that it has published."""

    def __init__(self, watch: PodWatch) -> None:
        self.watch = watch
        self.tables: list[RouteTable] = []
        self.refuse = False

    def __call__(self, table: RouteTable) -> None:
        if self.refuse:
            raise ValueError("no such socket")
        self.tables.append(table)

    @property
    def pods(self) -> set[int]:
        return {route.pod for route in self.tables[-1]} if self.tables else set()


def edited(*path: str, **changes: Any) -> Callable[[Any], None]:
    """An edit of what stands at a path of an object."""

    def edit(body: Any) -> None:
        for name in path:
            body = body[name]
        body.update(changes)

    return edit


@contextlib.asynccontextmanager
async def following(api: KubeFake, *namespaces: str, selector: str = "", settle: float = 0) -> AsyncIterator[Published]:
    published = Published(PodWatch(namespaces or ("voice",), selector, settle, connect_to(lambda: api.url)))
    task = asyncio.create_task(published.watch.run(published))
    try:
        yield published
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], Any], what: str, within: float = 10) -> None:
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 - a condition of many parts has no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {within:g} s: {what}") from None


async def test_pods_become_routes_and_go_when_their_objects_go(api: KubeFake) -> None:
    api.create(transceiver_pod("a", 1))
    async with following(api) as published:
        assert not published.watch.status().loaded
        await until(lambda: published.pods == {1}, "the first list")
        assert published.watch.status().loaded
        api.create(transceiver_pod("b", 2, "10.0.0.2"))
        await until(lambda: published.pods == {1, 2}, "an added pod")
        api.remove("Pod", "voice", "a")  # it is on a node, so it terminates first
        await until(lambda: not published.tables[-1][Route(7, 1)].placeable, "a terminating pod takes no calls")
        assert published.pods == {1, 2}
        api.remove("Pod", "voice", "a", force=True)
        await until(lambda: published.pods == {2}, "a pod that is gone")
        api.change("Pod", "voice", "b", lambda pod: pod["status"].update(phase="Failed"))
        await until(lambda: published.pods == set(), "a pod that has ended")


async def test_only_labelled_pods_of_the_namespace_and_the_selector_are_followed(api: KubeFake) -> None:
    api.create(transceiver_pod("a", 1))
    api.create(transceiver_pod("other-pool", 2, pool="video"))
    api.create(transceiver_pod("elsewhere", 3, namespace="other"))
    gated = transceiver_pod("gated", 4)
    del gated["metadata"]["labels"]["usher.fleet/pod-id"]
    api.create(gated)
    relay = transceiver_pod("relay", 5)
    relay["metadata"]["labels"]["app.kubernetes.io/component"] = "relay"
    api.create(relay)
    async with following(api, selector="usher.fleet/pool=voice") as published:
        await until(lambda: published.pods == {1}, "one pod")
        api.change("Pod", "voice", "gated", lambda pod: pod["metadata"]["labels"].update({"usher.fleet/pod-id": "4"}))
        await until(lambda: published.pods == {1, 4}, "a pod that gets its id")
    assert {call.namespace for call in api.calls} == {"voice"}
    assert {call.verb for call in api.calls} == {"list", "watch"}
    assert {call.resource for call in api.calls} == {"pods"}


async def test_nothing_is_published_before_all_namespaces_are_listed(api: KubeFake) -> None:
    api.create(transceiver_pod("a", 1))
    api.create(transceiver_pod("b", 2, namespace="other"))
    api.fail(403, verb="list", times=10_000).matches = lambda call: call.namespace == "other"
    async with following(api, "voice", "other") as published:
        await until(lambda: published.watch.restarts["forbidden"] > 2, "refused lists")
        assert not published.tables
        assert not published.watch.status().loaded
        assert "403" in published.watch.status().fault
        api.heal()
        await until(lambda: published.pods == {1, 2}, "both")
        assert published.watch.status().fault == ""


async def test_after_410_in_a_stream_a_new_list_drops_what_vanished_meanwhile(api: KubeFake) -> None:
    for number in (1, 2, 3):
        api.create(transceiver_pod(f"p{number}", number, f"10.0.0.{number}"))
    async with following(api) as published:
        await until(lambda: published.pods == {1, 2, 3}, "the first list")
        await until(lambda: api.watches == 1, "a watch")
        # The deletion is never told: the history is gone before the watch can send it.
        api.remove("Pod", "voice", "p2", force=True)
        api.create(transceiver_pod("p4", 4, "10.0.0.4"))
        api.compact()
        await until(lambda: published.pods == {1, 3, 4}, "the new list")
        assert not any(table.keys() == set() for table in published.tables), "never flushed"
        assert published.watch.restarts["expired"] + published.watch.restarts["ended"] >= 1


@pytest.mark.parametrize("code", [410, 500, 504])
async def test_a_watch_refused_for_its_version_starts_over_with_a_list(api: KubeFake, code: int) -> None:
    api.create(transceiver_pod("a", 1))
    async with following(api) as published:
        await until(lambda: api.watches == 1, "a watch")
        lists = sum(call.verb == "list" for call in api.calls)
        api.fail(code, verb="watch")
        api.close_watches()
        await until(lambda: sum(call.verb == "list" for call in api.calls) == lists + 1, "a new list")
        api.create(transceiver_pod("b", 2, "10.0.0.2"))
        await until(lambda: published.pods == {1, 2}, "goes on")


@pytest.mark.parametrize("code", [0, 401, 429, 503])
async def test_a_watch_that_the_server_could_not_begin_goes_on_from_its_version(api: KubeFake, code: int) -> None:
    async with following(api) as published:
        await until(lambda: api.watches == 1, "a watch")
        api.fail(code, verb="watch", times=3)
        api.close_watches()
        api.create(transceiver_pod("a", 1))
        await until(lambda: published.pods == {1}, "the change meanwhile")
        assert sum(call.verb == "list" for call in api.calls) == 1


async def test_a_server_that_is_away_leaves_the_table_and_its_age_grows(api: KubeFake) -> None:
    api.create(transceiver_pod("a", 1))
    async with following(api) as published:
        await until(lambda: api.watches == 1, "a watch")
        await until(lambda: published.watch.status().age == 0, "that it is up to date")
        api.is_down = True
        api.close_watches()
        await until(lambda: (published.watch.status().age or 0) > 0.3, "the age")
        await until(lambda: "503" in published.watch.status().fault, "what is wrong")
        assert published.watch.status().loaded
        assert published.pods == {1}
        tables = len(published.tables)
        api.remove("Pod", "voice", "a", force=True)
        api.create(transceiver_pod("b", 2, "10.0.0.2"))
        api.heal()
        await until(lambda: published.pods == {2}, "what happened meanwhile")
        good = SourceStatus("pods in voice", loaded=True, age=0.0, fault="")
        await until(lambda: published.watch.status() == good, "good again")
        assert len(published.tables) > tables


async def test_a_watch_that_went_silent_is_opened_anew_and_nothing_is_lost(api: KubeFake) -> None:
    changes = asyncio.Event()
    watch = ObjectWatch("pods", PODS, "", lambda body: body["metadata"]["name"], changes.set,
                        connect_to(lambda: api.url), silence=0.3)  # fmt: skip
    task = asyncio.create_task(watch.run())
    try:
        await until(lambda: api.watches == 1, "a watch")
        api.stall_watches()
        api.create(transceiver_pod("a", 1))
        await until(lambda: list(watch.objects.values()) == ["a"], "the change that the dead watch kept")
        assert watch.restarts["silent"] >= 1
        assert sum(call.verb == "list" for call in api.calls) == 1, "no new list: the version was good"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_bookmarks_move_the_version_on_and_keep_a_quiet_watch_open() -> None:
    async with KubeFake(bookmark_every=0.1) as api:
        watch = ObjectWatch("pods", PODS, "", lambda body: body["metadata"]["name"], lambda: None,
                            connect_to(lambda: api.url), silence=1.5)  # fmt: skip
        task = asyncio.create_task(watch.run())
        try:
            await until(lambda: api.watches == 1, "a watch")
            began = watch._version
            api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "voice"}})
            await until(lambda: watch._version != began, "a bookmark after another object's change")
            opened = time.monotonic()
            await until(lambda: time.monotonic() - opened > 2, "longer than the silence that ends a watch")
            assert watch.restarts.total() == 0
            api.close_watches()
            await until(
                lambda: api.calls[-1].verb == "watch" and watch.restarts["ended"] == 1 and api.watches == 1,
                "the next watch",
            )
            assert api.calls[-1].query["resourceVersion"] == watch._version
            assert api.calls[-1].query["allowWatchBookmarks"] == "true"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_each_object_that_came_changed_or_went_is_told_whether_a_watch_or_a_new_list_brings_it(
    api: KubeFake,
) -> None:
    told: list[str] = []

    def parse(body: Any) -> str:
        return f"{body['metadata']['name']} {body['metadata']['labels'].get('touched', '')}".strip()

    for name in ("a", "b"):
        api.create(transceiver_pod(name, 1))
    watch = ObjectWatch("pods", PODS, "", parse, lambda: None, connect_to(lambda: api.url), on_each=told.append)
    task = asyncio.create_task(watch.run())
    try:
        await until(lambda: sorted(told) == ["a", "b"], "the first list")
        api.change("Pod", "voice", "a", edited("metadata", "labels", touched="1"))
        api.remove("Pod", "voice", "b", force=True)
        await until(lambda: told[2:] == ["a 1", "b"], "what the watch brings")
        api.is_down = True
        api.close_watches()
        api.change("Pod", "voice", "a", edited("metadata", "labels", touched="2"))
        api.create(transceiver_pod("c", 3))
        api.create(transceiver_pod("d", 4))
        api.remove("Pod", "voice", "d", force=True)
        api.compact()
        api.heal()
        await until(lambda: sorted(told[4:]) == ["a 2", "c"], "what has changed since, and nothing else")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_of_pods_with_one_route_the_oldest_has_it_and_the_next_takes_over_when_it_goes(api: KubeFake) -> None:
    old, new = transceiver_pod("old", 1, "10.0.0.1"), transceiver_pod("new", 1, "10.0.0.2")
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    new["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    api.create(new)
    async with following(api) as published:
        await until(lambda: published.pods == {1}, "the new one alone")
        api.create(old)
        await until(lambda: published.tables[-1][Route(7, 1)].udp == "10.0.0.1:7200", "the older one")
        assert published.watch.conflicts == 1
        for count in range(5):
            api.change("Pod", "voice", "new", edited("metadata", "labels", touched=str(count)))
        api.create(transceiver_pod("more", 2, "10.0.0.3"))
        await until(lambda: published.pods == {1, 2}, "later changes")
        assert published.tables[-1][Route(7, 1)].udp == "10.0.0.1:7200"
        api.remove("Pod", "voice", "old", force=True)
        await until(lambda: published.tables[-1][Route(7, 1)].udp == "10.0.0.2:7200", "the one that is left")
        assert published.watch.conflicts == 0


async def test_pods_that_make_no_sense_are_counted_and_cost_no_other_its_route(api: KubeFake) -> None:
    api.create(transceiver_pod("bad", "x1"))
    api.create(transceiver_pod("good", 1))
    portless = transceiver_pod("portless", 2)
    portless["spec"]["containers"][0]["ports"] = []
    async with following(api) as published:
        await until(lambda: published.pods == {1}, "the good one")
        assert published.watch.skipped == {"pod_id": 1}
        api.create(portless)
        await until(lambda: published.watch.skipped == {"pod_id": 1, "port": 1}, "a bad one by the watch")
        api.change("Pod", "voice", "bad", lambda pod: pod["metadata"]["labels"].update({"usher.fleet/pod-id": "3"}))
        await until(lambda: published.pods == {1, 3}, "a repaired one")
        api.remove("Pod", "voice", "portless", force=True)
        await until(lambda: not published.watch.skipped, "none is left")


async def test_a_pod_gets_calls_once_its_address_was_known_for_the_settle_time(api: KubeFake) -> None:
    route = Route(7, 1)
    async with following(api, settle=0.4) as published:
        await until(lambda: published.tables, "the first list")
        api.create(transceiver_pod("a", 1))
        await until(lambda: published.pods == {1}, "routable at once")
        seen = time.monotonic()
        assert not published.tables[-1][route].placeable
        await until(lambda: published.tables[-1][route].placeable, "placeable by itself later")
        assert 0.3 <= time.monotonic() - seen < 5
        api.change("Pod", "voice", "a", lambda pod: pod["status"].update(conditions=[]))
        await until(lambda: not published.tables[-1][route].placeable, "unready")
        api.change("Pod", "voice", "a", lambda pod: pod["status"].update(
            conditions=[{"type": "Ready", "status": "True"}]))  # fmt: skip
        again = time.monotonic()
        await until(lambda: published.tables[-1][route].placeable, "ready again, known for long")
        assert time.monotonic() - again < 0.35
        api.change("Pod", "voice", "a", lambda pod: pod["status"].update(podIP="10.9.9.9"))
        await until(lambda: published.tables[-1][route].udp == "10.9.9.9:7200", "another address")
        assert not published.tables[-1][route].placeable, "which relays have to learn first"


async def test_a_thousand_pods_come_in_pages_and_a_burst_makes_few_tables(api: KubeFake) -> None:
    for number in range(1, 1001):
        api.create(transceiver_pod(f"p{number}", number, f"10.0.{number // 250}.{number % 250 + 1}"))
    async with following(api) as published:
        await until(lambda: len(published.pods) == 1000, "all", within=30)
        pages = [call for call in api.calls if call.verb == "list"]
        assert len(pages) == 10
        assert {call.query["limit"] for call in pages} == {"100"}
        assert len(published.tables) == 1
        await until(lambda: api.watches == 1, "a watch")
        for number in range(1, 1001):
            api.change("Pod", "voice", f"p{number}", lambda pod: pod["metadata"]["labels"].update(
                {"usher.fleet/state": "draining"}))  # fmt: skip
        await until(lambda: not any(entry.placeable for entry in published.tables[-1].values()), "all", within=30)
        assert len(published.tables) < 300
        assert len(published.pods) == 1000


async def test_a_list_whose_pages_have_expired_begins_anew(api: KubeFake) -> None:
    for number in range(1, 251):
        api.create(transceiver_pod(f"p{number}", number, f"10.0.0.{number}"))
    api.fail(410, verb="list").matches = lambda call: "continue" in call.query
    async with following(api) as published:
        await until(lambda: len(published.pods) == 250, "all")
        assert published.watch.restarts["expired"] == 1


async def test_changes_that_mean_nothing_for_routes_make_no_table(api: KubeFake) -> None:
    api.create(transceiver_pod("a", 1))
    async with following(api) as published:
        await until(lambda: api.watches == 1 and published.tables, "a watch")
        for count in range(20):
            api.change("Pod", "voice", "a", edited("status", message=str(count)))
        api.create(transceiver_pod("b", 2, "10.0.0.2"))
        await until(lambda: published.pods == {1, 2}, "one that does")
        assert len(published.tables) == 2


async def test_routes_that_cannot_be_used_leave_the_last_good_ones(api: KubeFake) -> None:
    api.create(transceiver_pod("a", 1))
    async with following(api) as published:
        await until(lambda: published.pods == {1}, "the first list")
        published.refuse = True
        api.create(transceiver_pod("b", 2, "10.0.0.2"))
        await until(lambda: published.watch.status().fault, "the fault")
        assert "no such socket" in published.watch.status().fault
        assert published.watch.table.keys() == {Route(7, 1)}
        published.refuse = False
        api.create(transceiver_pod("c", 3, "10.0.0.3"))
        await until(lambda: published.pods == {1, 2, 3}, "the next table")
        assert published.watch.status().fault == ""


async def test_an_unknown_route_is_waited_for_but_not_for_long(api: KubeFake) -> None:
    async with following(api) as published:
        await until(lambda: api.watches == 1 and published.tables, "a watch")
        wanted = asyncio.create_task(published.watch.find(Route(7, 1), within=5))
        await asyncio.sleep(0)
        api.create(transceiver_pod("a", 1))
        found = await wanted
        assert found is not None
        assert found.udp == "10.0.0.1:7200"
        began = time.monotonic()
        assert await published.watch.find(Route(7, 9), within=0.2) is None
        assert 0.15 < time.monotonic() - began < 3


@pytest.mark.parametrize(
    "line", [b"[]\n", b"{}\n", b'{"type":"ADDED"}\n', b'{"type":"ADDED","object":{}}\n', b"nonsense\n",
             b'{"type":"BOOKMARK","object":{"metadata":null}}\n', b'{"type":"ERROR","object":{"code":"x"}}\n',
             b'{"type":"ERROR","object":{}}\n'],
)  # fmt: skip
async def test_a_stream_of_nonsense_starts_over_with_a_list(line: bytes) -> None:
    lists, watch = await followed_by_lines(line)
    assert lists >= 2
    assert watch.restarts["malformed"] + watch.restarts["refused"] >= 1
    assert list(watch.objects.values()) == ["a"], "what was known stays"


async def test_the_end_of_a_stream_within_a_line_is_an_end() -> None:
    lists, watch = await followed_by_lines(b'{"type":"ADDED","obj', times=3)
    assert lists == 1
    assert watch.restarts.keys() == {"ended"}


async def followed_by_lines(line: bytes, times: int = 2) -> tuple[int, ObjectWatch[str]]:
    """Follow a server whose every watch sends that; return the number of lists once it was watched so often."""
    from aiohttp import web

    lists = watches = 0

    async def serve(request: web.Request) -> web.StreamResponse:
        nonlocal lists, watches
        if "watch" in request.query:
            watches += 1
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(line)
            return response
        lists += 1
        items = [{"metadata": {"name": "a", "uid": "1"}}]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    app = web.Application()
    app.router.add_get(PODS, serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    watch = ObjectWatch("pods", PODS, "", lambda body: str(body["metadata"]["name"]), lambda: None,
                        connect_to(lambda: url))  # fmt: skip
    task = asyncio.create_task(watch.run())
    try:
        await until(lambda: watches > times, "watches")
        return lists, watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.cleanup()


async def test_each_try_reads_the_login_anew_and_a_missing_one_is_said_once(
    api: KubeFake, capsys: pytest.CaptureFixture[str]
) -> None:
    good = connect_to(lambda: api.url)
    tries = 0

    async def connect() -> Any:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise LocalError("no way to the Kubernetes API")
        return await good()

    watch = ObjectWatch("pods in voice", PODS, "", lambda body: "x", lambda: None, connect)
    task = asyncio.create_task(watch.run())
    try:
        await until(lambda: api.watches == 1, "a watch")
        api.fail(401, verb="watch", times=2)
        api.close_watches()
        await until(lambda: api.watches == 1 and tries == 8, "a fresh login for each")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert capsys.readouterr().out.count("no way to the Kubernetes API") == 1
    assert watch.restarts == {"unconfigured": 4, "unauthorized": 2, "ended": 1}


@pytest.mark.parametrize("text", ["", "{}", "[]", "a: [", "apiVersion: v1\nkind: Config\ncurrent-context: x\n", None])
async def test_a_kubeconfig_of_no_use_is_named_with_what_to_do(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    if text is not None:
        (tmp_path / "kubeconfig").write_text(text)
    with pytest.raises(LocalError, match=r"no way to the Kubernetes API: .*set KUBECONFIG \(tried .*kubeconfig\)"):
        await object_watch.connect()
