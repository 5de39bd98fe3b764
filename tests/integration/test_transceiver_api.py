"""The internal API: admission, idempotence, errors, drain, observers, probes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.raw_client import RawClient
from tests.signaling_fakes import until as until_true
from tests.transceiver_rig import TOKEN, Rig, rig, until
from usher_core.event_policy import BROWSER
from usher_core.internal_api import BASE_PATH, EVENT_POLICY_HEADER, ErrorAnswer, HeldKeys, SessionList
from usher_core.keys import held_keys, parse_key_file
from usher_transceiver.http_guard import MAX_BODY
from usher_transceiver.main import MAX_EVENT_BYTES
from usher_transceiver.observer import MAX_BYTES_PER_SECOND, MAX_EVENTS_PER_SECOND

OFFERS = Path(__file__).parents[1] / "vectors" / "offers"


def offer(name: str = "chromium") -> str:
    return (OFFERS / f"{name}.sdp").read_bytes().decode()


def assert_error(answer: httpx.Response, status: int, code: str) -> ErrorAnswer:
    assert answer.status_code == status, answer.text
    parsed = ErrorAnswer.model_validate_json(answer.text)
    assert parsed.error.code == code
    return parsed


@pytest.mark.parametrize("name", sorted(path.stem for path in OFFERS.glob("*.sdp")))
async def test_every_stored_offer_of_a_real_client_gets_a_session(tmp_path: Path, name: str) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer(name))
        assert created["answer"].startswith("v=0\r\n")
        assert f"a=ice-ufrag:{created['ufrag']}\r\n" in created["answer"]
        load = {"sessions": 1, "max_sessions": 100, "draining": False, "accepts": True, "created": 1, "tenants": {}}
        assert created["load"] == {**load, "cpu": None, "loop_lag_ms": None}


async def test_a_load_tells_calls_by_tenant_and_how_many_were_ever_made(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        made = [
            (await running.post("/sessions", running.body(offer(), tenant=tenant))).json()
            for tenant in ("acme", "other", "acme")
        ]
        assert [created["load"]["created"] for created in made] == [1, 2, 3]
        load = (await running.http.get(f"{BASE_PATH}/load")).json()
        assert (load["tenants"], load["created"]) == ({"acme": 2, "other": 1}, 3)
        await running.http.delete(f"{BASE_PATH}/sessions/{made[1]['session_id']}")
        load = (await running.http.get(f"{BASE_PATH}/load")).json()
        assert (load["tenants"], load["created"]) == ({"acme": 2}, 3)


async def test_it_tells_which_keys_it_holds_and_how_many_ufrags_each_letter_made(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer())
        answer = await running.http.get(f"{BASE_PATH}/keys")
        held = HeldKeys.model_validate(answer.json())
        file = parse_key_file((tmp_path / "transceiver.json").read_text())
        assert held.keys == held_keys(file)
        assert held.ufrags == {created["ufrag"][0]: 1}
        assert not any(base64.b64encode(key.ufrag_key).decode() in answer.text for key in file.ice)
        assert (
            await running.http.get(f"{BASE_PATH}/keys", headers={"Authorization": "Bearer wrong"})
        ).status_code == 401


async def test_a_hundred_creates_at_once_never_exceed_the_limit(tmp_path: Path) -> None:
    async with rig(tmp_path, max_sessions=40) as running:
        bodies = [running.body(offer()) for _ in range(100)]
        answers = await asyncio.gather(*(running.post("/sessions", body) for body in bodies))
        assert sorted({answer.status_code for answer in answers}) == [201, 503]
        assert sum(answer.status_code == 201 for answer in answers) == 40
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert_error(refused, 503, "full")
        assert refused.headers["retry-after"] == "1"
        assert len(running.transceiver.sessions) == 40
        assert len({answer.json()["ufrag"] for answer in answers if answer.status_code == 201}) == 40
        one = next(answer.json()["session_id"] for answer in answers if answer.status_code == 201)
        await running.http.delete(f"{BASE_PATH}/sessions/{one}")
        assert (await running.post("/sessions", running.body(offer()))).status_code == 201


async def test_a_request_id_gets_the_same_answer_also_when_full(tmp_path: Path) -> None:
    async with rig(tmp_path, max_sessions=1) as running:
        body = running.body(offer())
        first, second = await running.post("/sessions", body), await running.post("/sessions", body)
        assert first.json() == second.json()
        assert len(running.transceiver.sessions) == 1


async def test_a_request_that_was_closed_makes_no_session_before_or_after(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        body = running.body(offer())
        created = (await running.post("/sessions", body)).json()
        url = f"{BASE_PATH}/requests/{body['request_id']}"
        ended = await running.http.delete(url)
        assert ended.json() == {"session_id": created["session_id"], "reason": "hangup"}
        assert_error(await running.http.delete(url), 404, "unknown_request")
        assert_error(await running.post("/sessions", body), 409, "request_closed")
        late = running.body(offer())
        assert_error(await running.http.delete(f"{BASE_PATH}/requests/{late['request_id']}"), 404, "unknown_request")
        assert_error(await running.post("/sessions", late), 409, "request_closed")
        assert len(running.transceiver.sessions) == 0


async def test_drain_refuses_creates_and_undrain_takes_them_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000)
        session = await client.create()
        assert (await running.post("/drain")).json()["accepts"] is False
        assert_error(await running.post("/sessions", running.body(offer())), 503, "draining")
        await client.connect()
        assert session.state == "connected"
        assert (await running.http.get("/readyz")).status_code == 200
        assert (await running.post("/undrain")).json()["accepts"] is True
        await running.create(offer())


async def test_a_drain_with_a_deadline_ends_what_still_runs_then_unless_it_is_called_off(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer())
        assert (await running.post("/drain", {"deadline_s": 0.3})).json()["accepts"] is False
        assert (await running.post("/undrain")).json()["accepts"] is True
        await running.post("/drain", {"deadline_s": 3600})
        assert len(running.transceiver.sessions) == 1
        # The last deadline counts, and a drain without one changes nothing of it.
        begun = asyncio.get_running_loop().time()
        await running.post("/drain", {"deadline_s": 0.6})
        assert (await running.post("/drain")).json()["sessions"] == 1
        await until(lambda: len(running.transceiver.sessions) == 0, "ended at the deadline")
        assert asyncio.get_running_loop().time() - begun >= 0.6
        info = (await running.http.get(f"{BASE_PATH}/sessions/{created['session_id']}")).json()
        assert info["end_reason"] == "drain_deadline"
        assert (await running.post("/undrain")).json()["accepts"] is True
        await running.create(offer())
        for wrong in ({"deadline_s": 0}, {"deadline_s": 1e9}, {"deadline": 5}):
            assert_error(await running.post("/drain", wrong), 400, "invalid_request")
        assert (await running.http.get(f"{BASE_PATH}/load")).json()["draining"] is False


async def test_load_tells_how_busy_the_process_is(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:

        async def load() -> dict[str, Any]:
            answer: dict[str, Any] = (await running.http.get(f"{BASE_PATH}/load")).json()
            return answer

        assert 0 <= (await load())["cpu"] < 64
        time.sleep(0.3)  # noqa: ASYNC251 - what a backend must not do

        async def says_so() -> bool:
            return bool((await load())["loop_lag_ms"] >= 150)

        await until_true(says_so)
        created = await running.create(offer())
        assert created["load"]["cpu"] is None


async def test_a_transceiver_that_was_told_to_end_takes_no_calls_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        await running.create(offer())
        running.transceiver.on_signal()
        assert (await running.post("/undrain")).json()["accepts"] is False
        assert_error(await running.post("/sessions", running.body(offer())), 503, "draining")


async def test_a_session_can_be_looked_at_for_a_while_after_its_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer(), tenant="acme")
        url = f"{BASE_PATH}/sessions/{created['session_id']}"
        alive = (await running.http.get(url)).json()
        assert (alive["state"], alive["tenant"], alive["backend"]) == ("new", "acme", "echo")
        assert (await running.http.delete(url)).json()["reason"] == "hangup"
        assert_error(await running.http.delete(url), 404, "unknown_session")
        gone = (await running.http.get(url)).json()
        assert (gone["state"], gone["end_reason"]) == ("ended", "hangup")
        assert_error(await running.post(f"/sessions/{created['session_id']}/trickle", {}), 404, "unknown_session")
        for method in ("GET", "DELETE"):
            missing = await running.http.request(method, f"{BASE_PATH}/sessions/{'0' * 16}")
            assert_error(missing, 404, "unknown_session")


@pytest.mark.parametrize(
    "change,status,code,param",
    [
        ({"offer": "nonsense"}, 400, "bad_sdp", None),
        ({"offer": "x" * 70_000}, 400, "invalid_request", "offer"),
        ({"request_id": "short"}, 400, "invalid_request", "request_id"),
        ({"surprise": 1}, 400, "invalid_request", "surprise"),
        ({"advertise": []}, 400, "invalid_request", "advertise"),
        ({"advertise": [{"listener": 1, "host": "example.com", "port": 1}]}, 400, "bad_advertise", None),
        ({"backend": "no-such"}, 404, "unknown_backend", "backend"),
    ],
)
async def test_a_create_that_is_wrong_is_refused_in_words(
    tmp_path: Path, change: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async with rig(tmp_path) as running:
        answer = await running.post("/sessions", running.body(offer()) | change)
        assert assert_error(answer, status, code).error.param == param
        assert len(running.transceiver.sessions) == 0


async def test_a_backend_that_cannot_be_made_is_a_502_that_names_it_and_not_the_reason(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        running.transceiver.sessions._backends["broken"] = lambda config: config["sk-secret"]
        answer = await running.post("/sessions", running.body(offer()) | {"backend": "broken"})
        error = assert_error(answer, 502, "backend_failed").error
        assert (error.type, error.param) == ("server_error", "backend")
        assert "'broken'" in error.message
        assert "secret" not in answer.text
        assert len(running.transceiver.sessions) == 0
        await running.create(offer())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b"\xff"])
async def test_what_is_no_json_object_is_refused(tmp_path: Path, body: bytes) -> None:
    async with rig(tmp_path) as running:
        answer = await running.http.post(
            f"{BASE_PATH}/sessions", content=body, headers={"Content-Type": "application/json"}
        )
        assert_error(answer, 400, "invalid_request")


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_endless_body_is_cut(tmp_path: Path, chunked: bool) -> None:
    async def chunks() -> Any:
        for _ in range(MAX_BODY // 65_536 + 2):
            yield bytes(65_536)

    async with rig(tmp_path) as running:
        content = chunks() if chunked else bytes(MAX_BODY + 1)
        answer = await running.http.post(f"{BASE_PATH}/sessions", content=content)
        assert answer.status_code in (400, 413)
        assert len(running.transceiver.sessions) == 0


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", f"bearer {TOKEN}", f"Bearer {TOKEN}x", TOKEN])
async def test_without_the_token_there_is_no_internal_api(tmp_path: Path, given: str | None) -> None:
    async with rig(tmp_path) as running:
        headers = {} if given is None else {"Authorization": given}
        async with httpx.AsyncClient(base_url=running.transceiver.http, trust_env=False) as stranger:
            for method, path in (("POST", "/sessions"), ("GET", "/load"), ("POST", "/drain"), ("GET", "/nothing")):
                answer = await stranger.request(method, BASE_PATH + path, headers=headers)
                assert_error(answer, 401, "invalid_token")
            for path in ("/livez", "/readyz", "/metrics"):
                assert (await stranger.get(path)).status_code == 200


async def test_paths_that_do_not_exist_get_an_error_in_the_same_shape(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        assert_error(await running.http.get("/nothing"), 404, "not_found")


async def test_the_metrics_name_every_drop_and_no_address(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = RawClient(running, 2000)
        await client.create()
        await client.connect()
        client.send(b"\x16\xfe\xfd" + bytes(30), client.path)
        running.relay.send_raw(b"\1junk")
        await until(lambda: running.drops["hop_length"], "dropped")
        text = (await running.http.get("/metrics")).text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        states = {s.labels["state"]: s.value for s in families["usher_transceiver_sessions"].samples}
        assert states == {"new": 0, "connecting": 0, "connected": 1}
        drops = {s.labels["reason"]: s.value for s in families["usher_transceiver_drops"].samples}
        assert drops["hop_length"] == 1
        outcomes = {s.labels["outcome"] for s in families["usher_transceiver_checks"].samples}
        assert outcomes == {"fresh"}
        assert client.path.host not in text
        assert client.session.facts.session_id not in text


# Observers


def observe(
    running: Rig, session_id: str, token: str = TOKEN, query: str = "", policy: str | None = None, **options: Any
) -> connect:
    url = running.transceiver.http.replace("http://", "ws://") + f"{BASE_PATH}/sessions/{session_id}/events{query}"
    headers = {"Authorization": f"Bearer {token}"} | ({} if policy is None else {EVENT_POLICY_HEADER: policy})
    return connect(url, additional_headers=headers, proxy=None, **options)


async def receive(socket: ClientConnection) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 5))
    return event


async def test_an_observer_sees_all_events_may_send_some_and_is_told_of_the_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = running.client(audio=False)  # no speech events of the backend in between
        await client.call()
        await until(lambda: client.of_type("session.created"), "greeted")
        async with observe(running, client.session_id) as socket:
            assert (await receive(socket))["type"] == "session.created"
            await socket.send('{"type": "session.update", "session": {"instructions": "from the side"}}')
            assert [(await receive(socket))["type"] for _ in range(2)] == ["session.update", "session.updated"]
            await until(lambda: client.of_type("session.updated"), "the client sees it too")
            assert client.channel is not None
            client.channel.send('{"type": "unheard.of"}')
            assert [(await receive(socket))["type"] for _ in range(2)] == ["unheard.of", "error"]
            await running.http.delete(f"{BASE_PATH}/sessions/{client.session_id}")
            ended = await receive(socket)
            assert (ended["type"], ended["reason"]) == ("usher.call.ended", "hangup")
            with pytest.raises(ConnectionClosed) as closed:
                await receive(socket)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1000, "hangup")


async def test_client_and_observer_are_each_bound_by_the_policy_of_their_own_key(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        client = running.client(audio=False)
        policy = BROWSER.model_dump(mode="json")
        await client.call(session={"instructions": "secret"}, event_policy=policy)
        await until(lambda: client.of_type("session.created"), "greeted")
        assert "instructions" not in client.of_type("session.created")[0]["session"]
        assert client.channel is not None
        client.channel.send('{"type": "session.update", "event_id": "mine", "session": {"instructions": "mine"}}')
        await until(lambda: client.of_type("error"), "refused")
        error = client.of_type("error")[0]["error"]
        assert (error["code"], error["event_id"], error["param"]) == ("event_not_allowed", "mine", "type")
        update = '{"type": "session.update", "session": {"instructions": "new", "voice": "v"}}'
        query = "?client_events=false"
        bound = '{"allow": ["session.update"], "private": ["instructions"]}'
        async with (
            observe(running, client.session_id, query=query) as free,
            observe(running, client.session_id, query=query, policy=bound) as reader,
        ):
            assert (await receive(free))["session"]["instructions"] == "secret"
            assert "instructions" not in (await receive(reader))["session"]
            await free.send(update)
            assert (await receive(free))["session"]["instructions"] == "new"
            seen = (await receive(reader))["session"]
            assert (seen["voice"], "instructions" in seen) == ("v", False)
            await until(lambda: len(client.of_type("session.updated")) == 2, "the client learns of it")
            assert client.of_type("session.updated")[-1]["session"] == seen
            await reader.send(update)
            assert (await receive(reader))["error"]["param"] == "session.instructions"
        assert running.transceiver.sessions.totals.refused_events == 2
        metrics = (await running.http.get("/metrics")).text
        assert "usher_transceiver_events_refused_total 2.0" in metrics
        await running.http.delete(f"{BASE_PATH}/sessions/{client.session_id}")
        assert running.transceiver.sessions.totals.refused_events == 2


@pytest.mark.parametrize("policy", ["", "browser", '{"allow": "x"}', '{"deny": ["x"]}', '{"x": []}'])
async def test_an_observer_with_a_wrong_policy_is_refused(tmp_path: Path, policy: str) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer())
        with pytest.raises(InvalidStatus) as refused:
            async with observe(running, created["session_id"], policy=policy):
                pass
        assert refused.value.response.status_code == 400
        assert b"Usher-Event-Policy" in (refused.value.response.body or b"")


async def closed_with(socket: ClientConnection) -> tuple[int, str]:
    with contextlib.suppress(ConnectionClosed):
        async for _ in socket:
            pass
    assert socket.close_code is not None
    return socket.close_code, socket.close_reason or ""


async def test_an_observer_may_leave_out_what_clients_send(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer())
        async with observe(running, created["session_id"], query="?client_events=false") as socket:
            await socket.send('{"type": "session.update", "session": {}}')
            assert [(await receive(socket))["type"] for _ in range(2)] == ["session.created", "session.updated"]


async def test_more_observers_than_allowed_are_refused(tmp_path: Path) -> None:
    async with rig(tmp_path, max_observers=1) as running:
        created = await running.create(offer())
        async with observe(running, created["session_id"]) as socket:
            await receive(socket)
            with pytest.raises(InvalidStatus) as refused:
                async with observe(running, created["session_id"]):
                    pass
            assert refused.value.response.status_code == 429
            assert running.transceiver.sessions.totals.observers == 1
        assert running.transceiver.sessions.observers_dropped == {"too_many_observers": 1}


async def test_an_observer_that_does_not_read_is_dropped_and_the_call_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer())
        session = running.transceiver.sessions.get(created["session_id"])
        assert session is not None
        async with observe(running, created["session_id"], max_queue=1) as socket:
            await until(lambda: session.events.observers == 1, "observed")
            sent = 0
            while session.events.observers:
                sent += 1
                assert sent < 100_000
                session.events.emit({"type": "news", "text": "x" * 10_000})
                await asyncio.sleep(0)
            assert session.state == "new"
            assert running.transceiver.sessions.observers_dropped == {"too_slow": 1}
            # The close waits behind what the network holds already; it may come too late.
            assert await closed_with(socket) in ((1013, "too_slow"), (1006, ""))


async def test_an_observer_that_sends_too_much_is_dropped_and_the_call_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer())
        session = running.transceiver.sessions.get(created["session_id"])
        assert session is not None
        async with observe(running, created["session_id"], query="?client_events=false") as socket:
            with contextlib.suppress(ConnectionClosed):
                for _ in range(MAX_EVENTS_PER_SECOND * 2):
                    await socket.send('{"type": "x"}')
            assert await closed_with(socket) == (1008, "too_many_events")
        async with observe(running, created["session_id"], query="?client_events=false") as socket:
            with contextlib.suppress(ConnectionClosed):
                for _ in range(MAX_BYTES_PER_SECOND // 200_000 * 2):
                    await socket.send(json.dumps({"type": "x", "padding": "x" * 200_000}))
            assert await closed_with(socket) == (1008, "too_many_events")
        assert session.state == "new"
        assert running.transceiver.sessions.observers_dropped == {"too_many_events": 2}


async def test_an_observer_that_exceeds_what_the_call_takes_is_dropped_and_the_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer())
        session = running.transceiver.sessions.get(created["session_id"])
        assert session is not None
        monkeypatch.setattr(session, "take_message", lambda _text, _policy: False)
        async with observe(running, created["session_id"]) as socket:
            await socket.send('{"type": "x"}')
            assert await closed_with(socket) == (1008, "too_many_events")
        assert session.state == "new"
        session.on_message('{"type": "x"}')
        assert session.end_reason == "abuse"


@pytest.mark.parametrize(
    "message,close", [(b"binary", (1003, "text_expected")), ("x" * (MAX_EVENT_BYTES + 1), (1009, None))]
)
async def test_an_observer_that_sends_what_is_no_event_is_dropped(
    tmp_path: Path, message: bytes | str, close: tuple[int, str | None]
) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer())
        async with observe(running, created["session_id"]) as socket:
            await socket.send(message)
            code, reason = await closed_with(socket)
            assert code == close[0]
            assert close[1] in (None, reason)


async def test_live_sessions_of_a_tenant_are_listed_page_by_page(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        mine = sorted([(await running.create(offer(), tenant="acme"))["session_id"] for _ in range(5)])
        await running.create(offer(), tenant="other")
        ended = await running.create(offer(), tenant="acme")
        await running.http.delete(f"{BASE_PATH}/sessions/{ended['session_id']}")
        found: list[str] = []
        after, has_more = "0" * 16, True
        while has_more:
            query: dict[str, str | int] = {"tenant": "acme", "limit": 2, "after": after}
            page = SessionList.model_validate_json(
                (await running.http.get(f"{BASE_PATH}/sessions", params=query)).content
            )
            found += [info.session_id for info in page.sessions]
            after, has_more = found[-1], page.has_more
        assert found == mine
        for bad in (
            "",
            "?tenant=acme&limit=0",
            "?tenant=acme&limit=101",
            "?tenant=acme&after=zz",
            f"?tenant={65 * 'x'}",
        ):
            answer = await running.http.get(f"{BASE_PATH}/sessions{bad}")
            assert_error(answer, 400, "invalid_request")


async def test_an_observer_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        created = await running.create(offer())
        session = running.transceiver.sessions.get(created["session_id"])
        assert session is not None
        async with observe(running, created["session_id"]):
            await until(lambda: session.events.observers == 1, "observed")
        await until(lambda: session.events.observers == 0, "forgotten")


async def test_observing_needs_the_token_and_a_session(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        for token, status, code in (("wrong", 401, "invalid_token"), (TOKEN, 404, "unknown_session")):
            with pytest.raises(InvalidStatus) as refused:
                async with observe(running, "0" * 16, token=token):
                    pass
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body)["error"]["code"] == code
