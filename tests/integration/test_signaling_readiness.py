"""`/readyz` of signaling: unready for what this replica alone lacks, ready while live calls may need it."""

import json
import signal
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from tests.kube_fake import KubeFake
from tests.pod_objects import relay_pool, transceiver_pod, write_kubeconfig
from tests.signaling_fakes import (
    PASSWORD,
    FakeTransceiver,
    Fleet,
    Stack,
    assert_error,
    place,
    place_whip,
    signaling,
    until,
    write_files,
)
from tests.signaling_program import HEADERS, program
from usher_shell import object_watch

IN_KUBERNETES: dict[str, Any] = {
    "routes_file": None,
    "pods_namespace": ("voice",),
    "pods_settle": 0,
    "load_interval": 0.05,
    "relay_pools_namespace": ("voice",),
    "advertise": (),
}
RESTART = f"a=ice-ufrag:ysXw\r\na=ice-pwd:{PASSWORD}\r\n"
ASKED = "the first transceivers are being asked how full they are"


async def probe(stack: Stack) -> tuple[int, dict[str, Any]]:
    answer = await stack.client.get("/readyz")
    return answer.status_code, answer.json()


async def refreshed(stack: Stack) -> tuple[int, dict[str, Any]]:
    await stack.app.state.services.directory.refresh()
    return await probe(stack)


async def until_ready(stack: Stack) -> None:
    async def is_ready() -> bool:
        return (await probe(stack))[0] == 200

    await until(is_ready)


async def until_why(stack: Stack, words: str) -> None:
    """Wait until it is unready for a reason with these words."""

    async def says() -> bool:
        status, told = await probe(stack)
        assert (status == 200) is told["ready"] is (not told["why"])
        return any(words in reason for reason in told["why"])

    await until(says)


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeFake]:
    monkeypatch.setattr(object_watch, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(object_watch, "MAX_PAUSE_S", 0.1)
    async with KubeFake() as fake:
        write_kubeconfig(tmp_path / "kubeconfig", fake.url)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield fake


@pytest.mark.parametrize("state", ["draining", "full", "placeable nowhere"])
async def test_while_no_transceiver_takes_calls_it_is_ready_and_live_calls_are_controlled(
    tmp_path: Path, state: str
) -> None:
    fake = FakeTransceiver(pod=1)
    async with signaling(tmp_path, fake) as stack:
        call = (await place(stack.client)).headers["location"]
        whip = await place_whip(stack.client)
        fake.draining = state == "draining"
        fake.max_sessions = 0 if state == "full" else 100
        if state == "placeable nowhere":
            ending = fake.entry.model_copy(update={"placeable": False}).model_dump()
            (tmp_path / "routes.json").write_text(json.dumps({"version": 1, "transceivers": [ending]}))
        status, told = await refreshed(stack)
        assert (status, told["ready"], told["why"]) == (200, True, [])
        assert told["can_place"] is (state == "full"), "an end may make room at any moment"
        assert (told["why_no_call"] == "") is told["can_place"]

        refused = await place(stack.client)
        assert_error(refused, 503, "no_transceiver")
        assert refused.headers["retry-after"] == "1"

        assert len((await stack.client.get("/v1/realtime/calls")).json()["data"]) == 2
        assert (await stack.client.get(call)).status_code == 200
        headers = {"If-Match": "*", "Content-Type": "application/trickle-ice-sdpfrag"}
        restart = await stack.client.patch(whip.headers["location"], content=RESTART, headers=headers)
        assert restart.status_code == 200, restart.text
        assert (await stack.client.delete(whip.headers["location"])).status_code == 200
        assert (await stack.client.post(f"{call}/hangup")).status_code == 200


async def test_without_any_transceiver_or_address_it_is_ready_and_says_that_no_call_can_be_placed(
    tmp_path: Path,
) -> None:
    async with signaling(tmp_path, advertise=()) as stack:
        status, told = await probe(stack)
        assert (status, told["can_place"], told["advertised"]) == (200, False, 0)
        assert told["why_no_call"].startswith("There is no relay address for this call.")
        assert "--advertise" in assert_error(await place(stack.client), 503, "no_address")["message"]
        assert "usher_signaling_can_place 0.0" in (await stack.client.get("/metrics")).text
    write_files(tmp_path, [])
    async with signaling(tmp_path) as stack:
        status, told = await probe(stack)
        assert (status, told["can_place"], told["transceivers"]) == (200, False, 0)
        assert told["why_no_call"].startswith("No transceiver is known here.")
        stack.write_routes(stack.fleet.transceivers[0])
        assert (await refreshed(stack))[1]["can_place"]
        assert "usher_signaling_can_place 1.0" in (await stack.client.get("/metrics")).text


async def test_without_a_first_good_route_file_it_is_unready_and_a_later_loss_makes_it_not(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    write_files(tmp_path, [])
    routes = tmp_path / "routes.json"
    routes.unlink()
    async with signaling(tmp_path, fake) as stack:
        status, told = await refreshed(stack)
        assert (status, told["ready"]) == (503, False)
        assert told["why"] == [
            f"no first list from {routes}: the route file {routes} can't be read: No such file or directory"
        ]
        routes.write_text("no JSON")
        status, told = await refreshed(stack)
        assert status == 503
        assert "the route file is no JSON" in told["why"][0]
        stack.write_routes(fake)
        assert (await refreshed(stack))[0] == 200
        routes.unlink()
        status, told = await refreshed(stack)
        assert (status, told["can_place"]) == (200, True), "the last good list stays in use"


@pytest.mark.parametrize(
    ("resource", "name"), [("pods", "pods in voice"), ("relaypools.usher.fleet", "RelayPools in voice")]
)
async def test_in_kubernetes_it_is_unready_until_pods_and_relay_pools_were_listed_and_says_what_is_missing(
    api: KubeFake, tmp_path: Path, resource: str, name: str
) -> None:
    api.fail(403, verb="list", resource=resource, times=10_000)
    fake = FakeTransceiver(pod=1, cluster=7)
    async with signaling(tmp_path, fleet=Fleet([fake]), **IN_KUBERNETES) as stack:
        await until_why(stack, f"no first list from {name}: ")
        await until_why(stack, "403")
        api.heal()
        await until_ready(stack)
        status, told = await probe(stack)
        assert (status, told["why"], told["can_place"]) == (200, [], False), "an empty list is a good one"
        response = await place(stack.client)
        assert response.headers["retry-after"] == "1"
        api.is_down = True
        api.close_watches()

        async def is_lost() -> bool:
            return bool(stack.app.state.services.directory.source.status().fault)

        await until(is_lost)
        assert (await probe(stack))[0] == 200


async def test_in_kubernetes_a_call_without_transceivers_is_told_where_to_look(api: KubeFake, tmp_path: Path) -> None:
    api.create(relay_pool("a", "192.0.2.1:3478"))
    async with signaling(tmp_path, **IN_KUBERNETES) as stack:
        await until_ready(stack)

        async def has_address() -> bool:
            return bool((await probe(stack))[1]["advertised"])

        await until(has_address)
        message = assert_error(await place(stack.client), 503, "no_transceiver")["message"]
        why = (await probe(stack))[1]["why_no_call"]
    assert message == "No transceiver is known here. Try again soon."
    assert why == f"{message} Where to look: `kubectl get tpool,pods`."


async def test_a_replica_that_has_not_asked_the_listed_transceivers_yet_leaves_calls_to_others(
    api: KubeFake, tmp_path: Path
) -> None:
    api.create(transceiver_pod("p1", 1, "10.0.0.1"))
    api.create(relay_pool("a", "192.0.2.1:3478"))
    fake = FakeTransceiver(pod=1, cluster=7)
    fake.http = "http://10.0.0.1:7280"
    async with signaling(tmp_path, fleet=Fleet([fake]), **{**IN_KUBERNETES, "load_interval": 60}) as stack:
        await until_why(stack, ASKED)

        async def is_known() -> bool:
            told = (await probe(stack))[1]
            return (told["transceivers"], told["advertised"]) == (1, 1)

        await until(is_known)
        assert (await refreshed(stack))[0] == 200
        assert (await place(stack.client)).status_code == 201


async def test_a_new_replica_waits_for_the_settle_time_in_which_it_would_refuse_what_others_take(
    api: KubeFake, tmp_path: Path
) -> None:
    api.create(transceiver_pod("p1", 1, "10.0.0.1"))
    api.create(relay_pool("a", "192.0.2.1:3478"))
    fake = FakeTransceiver(pod=1, cluster=7)
    fake.http = "http://10.0.0.1:7280"
    async with signaling(tmp_path, fleet=Fleet([fake]), **{**IN_KUBERNETES, "pods_settle": 0.5}) as stack:
        await until_ready(stack)
        assert (await place(stack.client)).status_code == 201


async def test_told_to_end_it_is_unready_says_so_and_serves_on(tmp_path: Path) -> None:
    write_files(tmp_path, [FakeTransceiver(pod=1)])
    async with (
        program(tmp_path, "--linger", "30", "--log-format", "json") as running,
        httpx.AsyncClient(base_url=running.url, headers=HEADERS) as client,
    ):
        assert (await client.get("/readyz")).json()["ready"]
        running.process.send_signal(signal.SIGTERM)

        async def is_ending() -> bool:
            return (await client.get("/readyz")).status_code == 503

        await until(is_ending)
        assert (await client.get("/readyz")).json()["why"] == ["told to end"]
        assert (await client.get("/v1/realtime/calls")).status_code == 200
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    told = [(line["event"], line.get("why")) for line in lines if line["event"] in ("ready", "not ready")]
    assert told == [("ready", None), ("not ready", "told to end")]


async def test_the_log_has_one_line_per_change_however_often_it_is_asked(tmp_path: Path) -> None:
    fake = FakeTransceiver(pod=1)
    write_files(tmp_path, [])
    (tmp_path / "routes.json").unlink()
    with capture_logs() as entries:
        async with signaling(tmp_path, fake) as stack:
            for step in range(4):
                fake.draining = step == 2
                if step == 1:
                    stack.write_routes(fake)
                for _ in range(3):
                    await refreshed(stack)

    def told(entry: MutableMapping[str, Any]) -> tuple[str, str]:
        return entry["log_level"], entry["event"]

    changes = [told(entry) for entry in entries if entry["event"].endswith(("ready", "be placed"))]
    assert changes == [
        ("info", "not ready"),
        ("info", "no call can be placed"),
        ("info", "ready"),
        ("info", "calls can be placed"),
        ("warning", "no call can be placed"),
        ("info", "calls can be placed"),
    ]
    [lost] = [entry for entry in entries if told(entry) == ("warning", "no call can be placed")]
    assert lost["why"].startswith("Every transceiver here drains.")
