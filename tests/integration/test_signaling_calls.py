"""The Realtime call API, against pretended transceivers."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.signaling_fakes import (
    ANSWER,
    API_KEY,
    OFFER,
    OTHER_KEY,
    FakeTransceiver,
    Fleet,
    assert_error,
    place,
    place_whip,
    signaling,
)

SDP = {"Content-Type": "application/sdp"}
CALLS = "/v1/realtime/calls"
FRAGMENT = "a=ice-ufrag:EsAw\r\na=ice-pwd:P2uYro0UCOQ4zxjKXaWCBui1\r\n"


async def test_an_offer_gets_its_answer_and_a_location(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        response = await place(stack.client)
    assert response.status_code == 201
    assert response.text == ANSWER
    assert response.headers["content-type"] == "application/sdp"
    assert response.headers["location"].startswith(f"{CALLS}/rtc_")
    asked = stack.fleet.transceivers[0].created[0]
    assert asked.offer == OFFER
    assert asked.tenant == "acme"
    assert [(one.listener, one.host, one.port) for one in asked.advertise] == [
        (1, "192.0.2.1", 3478),
        (2, "2001:db8::1", 3478),
    ]


async def test_the_media_type_may_have_parameters_and_capitals(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        response = await place(stack.client, headers={"Content-Type": "Application/SDP; charset=utf-8"})
    assert response.status_code == 201


@pytest.mark.parametrize(
    "sdp_part",
    [
        (None, OFFER, "application/sdp"),  # no file name: arrives as text
        ("offer.sdp", OFFER, "application/sdp"),  # with one: arrives as a file
        (None, OFFER),  # as a plain field
    ],
)
async def test_a_form_carries_offer_and_session(tmp_path: Path, sdp_part: Any) -> None:
    session = {"type": "realtime", "model": "m1", "instructions": "grüße"}
    form = {"sdp": sdp_part, "session": (None, json.dumps(session), "application/json")}
    async with signaling(tmp_path) as stack:
        response = await stack.client.post(CALLS, files=form)
    assert response.status_code == 201, response.text
    asked = stack.fleet.transceivers[0].created[0]
    assert asked.offer == OFFER
    assert asked.session == session


async def test_json_carries_offer_and_session(tmp_path: Path) -> None:
    """As the `openai` Python package sends it."""
    async with signaling(tmp_path) as stack:
        response = await stack.client.post(CALLS, json={"sdp": OFFER, "session": {"model": "m1"}})
    assert response.status_code == 201
    assert stack.fleet.transceivers[0].created[0].session == {"model": "m1"}


async def test_a_model_of_the_query_goes_into_the_session_unless_the_session_names_one(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        await place(stack.client, params={"model": "m1"})
        await stack.client.post(CALLS, params={"model": "m1"}, json={"sdp": OFFER, "session": {"model": "m2"}})
    assert [asked.session for asked in stack.fleet.transceivers[0].created] == [{"model": "m1"}, {"model": "m2"}]


async def test_a_valid_traceparent_is_handed_on_and_a_malformed_one_dropped(tmp_path: Path) -> None:
    good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with signaling(tmp_path) as stack:
        for value in (good, "00-xyz"):
            await place(stack.client, headers={"traceparent": value})
    assert [asked.traceparent for asked in stack.fleet.transceivers[0].created] == [good, None]


async def test_hang_up_ends_the_call_once(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        url = (await place(stack.client)).headers["location"]
        assert stack.fleet.session_count == 1
        assert (await stack.client.post(f"{url}/hangup")).status_code == 200
        assert stack.fleet.session_count == 0
        assert_error(await stack.client.post(f"{url}/hangup"), 404, "call_not_found")


async def test_a_call_describes_itself(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        url = (await place(stack.client)).headers["location"]
        told = (await stack.client.get(url)).json()
    assert told == {
        "id": url.rpartition("/")[2],
        "object": "realtime.call",
        "state": "new",
        "end_reason": None,
        "backend": "echo",
        "path": {
            "relay": "192.0.2.1:3478",
            "relay_region": None,
            "cluster": 1,
            "transceiver": "1/1/0",
            "region": None,
        },
        "timings": {
            "answer_ms": 1.5,
            "ice_ms": None,
            "dtls_ms": None,
            "first_audio_in_ms": None,
            "first_audio_out_ms": None,
        },
        "age_s": 2.0,
        "observers": 0,
    }


async def test_another_tenants_call_is_not_found_and_no_transceiver_is_asked(tmp_path: Path) -> None:
    other = {"Authorization": f"Bearer {OTHER_KEY}"}
    async with signaling(tmp_path) as stack:
        url = (await place(stack.client)).headers["location"]
        before = stack.fleet.transceivers[0].requests
        assert_error(await stack.client.get(url, headers=other), 404, "call_not_found")
        assert_error(await stack.client.post(f"{url}/hangup", headers=other), 404, "call_not_found")
        whip = f"/whip/{url.rpartition('/')[2]}"
        assert_error(await stack.client.delete(whip, headers=other), 404, "call_not_found")
        assert_error(await stack.client.patch(whip, headers=other), 404, "call_not_found")
        assert stack.fleet.transceivers[0].requests == before
        assert stack.fleet.session_count == 1


async def test_a_call_whose_transceiver_is_gone_is_gone(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        url = (await place(stack.client)).headers["location"]
        stack.write_routes()
        await stack.app.state.services.directory.refresh()
        assert_error(await stack.client.post(f"{url}/hangup"), 410, "call_gone")


async def test_a_call_is_reached_also_while_its_owner_drains(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        url = (await place(stack.client)).headers["location"]
        stack.fleet.transceivers[0].draining = True
        await stack.app.state.services.directory.refresh()
        assert (await stack.client.post(f"{url}/hangup")).status_code == 200


async def test_a_bad_offer_is_answered_in_the_transceivers_words_and_tried_once(tmp_path: Path) -> None:
    words = "SDP line 3: expected a=fingerprint"
    fakes = [FakeTransceiver(pod=1, bad_offer=words), FakeTransceiver(pod=2, bad_offer=words)]
    async with signaling(tmp_path, *fakes) as stack:
        assert assert_error(await place(stack.client), 400, "bad_sdp")["message"] == words
    assert sum(len(fake.created) for fake in fakes) == 1


async def test_a_backend_that_cannot_be_made_is_named_and_tried_once(tmp_path: Path) -> None:
    words = "the backend 'metronome' could not be made; the transceiver's log says why"
    fakes = [FakeTransceiver(pod=1, backend_fails=words), FakeTransceiver(pod=2, backend_fails=words)]
    async with signaling(tmp_path, *fakes) as stack:
        for number in (1, 2):
            error = assert_error(await place(stack.client), 502, "backend_failed")
            assert error["message"] == f"The call was not placed: {words}."
            assert sum(len(fake.created) for fake in fakes) == number
        for fake in fakes:
            fake.backend_fails = ""
        assert (await place(stack.client)).status_code == 201


async def test_full_draining_dead_and_broken_transceivers_cost_a_try_not_the_call(tmp_path: Path) -> None:
    fakes = [FakeTransceiver(pod=number) for number in range(5)]
    async with signaling(tmp_path, *fakes) as stack:
        # They get so only after they have told their load.
        fakes[0].max_sessions = 0
        fakes[1].draining = True
        fakes[2].dead = True
        fakes[3].broken = True
        for _ in range(20):
            assert (await place(stack.client)).status_code == 201
    assert len(fakes[4].sessions) == 20
    # Each was tried at most once before it was left alone.
    assert [len(fake.created) for fake in fakes[:2]] <= [1, 1]


async def test_a_transceiver_that_is_too_slow_is_told_to_close_and_the_next_one_takes_the_call(tmp_path: Path) -> None:
    slow, quick = FakeTransceiver(pod=1), FakeTransceiver(pod=2, max_sessions=0)
    async with signaling(tmp_path, slow, quick, attempt_timeout=0.05) as stack:
        slow.answer_delay, quick.max_sessions = 30, 100
        await stack.app.state.services.directory.refresh()
        for _ in range(10):
            assert (await place(stack.client)).status_code == 201
        await stack.app.state.services.client.close()
    assert len(slow.created) == 1
    assert slow.closed_requests == [slow.created[0].request_id]
    assert len(quick.sessions) == 10


@pytest.mark.parametrize(
    ("fault", "known"),
    [
        ("full", "Every transceiver here is full."),
        ("draining", "Every transceiver here drains."),
        ("dead", "No transceiver here answers."),
        ("none", "No transceiver is known here."),
    ],
)
async def test_with_nobody_to_take_the_call_503_says_what_is_known_and_when_to_come_again(
    tmp_path: Path, fault: str, known: str
) -> None:
    fake = FakeTransceiver(pod=1, max_sessions=0 if fault == "full" else 9, draining=fault == "draining")
    fake.dead = fault == "dead"
    async with signaling(tmp_path, fake) as stack:
        if fault == "none":
            stack.write_routes()
            await stack.app.state.services.directory.refresh()
        response = await place(stack.client)
        message = assert_error(response, 503, "no_transceiver")["message"]
        assert response.headers["retry-after"] == "1"
        why = (await stack.client.get("/readyz")).json()["why_no_call"]
    assert message == f"{known} Try again soon.", "where to look is nothing for callers"
    assert fault == "full" or "route file" in why
    assert "kubectl" not in why


async def test_several_reasons_why_nobody_takes_a_call_are_told_in_one_sentence(tmp_path: Path) -> None:
    fakes = [FakeTransceiver(pod=1, max_sessions=0), FakeTransceiver(pod=2, draining=True), FakeTransceiver(pod=3)]
    fakes[2].dead = True
    async with signaling(tmp_path, *fakes) as stack:
        message = assert_error(await place(stack.client), 503, "no_transceiver")["message"]
    assert message.startswith("Every transceiver here drains, is full or does not answer.")


async def test_an_answer_deadline_bounds_all_tries_together(tmp_path: Path) -> None:
    fakes = [FakeTransceiver(pod=number, answer_delay=30) for number in range(5)]
    async with signaling(tmp_path, *fakes, attempt_timeout=0.1, answer_deadline=0.25) as stack:
        assert_error(await place(stack.client), 503, "no_transceiver")
    assert 2 <= sum(len(fake.created) for fake in fakes) <= 3
    assert all(asked.deadline_ms <= 100 for fake in fakes for asked in fake.created)


async def test_a_transceiver_with_another_token_takes_no_call_and_its_words_stay_inside(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        stack.fleet.transceivers[0].refuses_token = True
        assert "token" not in assert_error(await place(stack.client), 503, "no_transceiver")["message"]
        assert not (await stack.client.get("/readyz")).json()["can_place"]


async def test_an_offer_that_makes_a_transceiver_fail_does_not_take_it_from_other_calls(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        transceiver = stack.fleet.transceivers[0]
        transceiver.bad_offer, transceiver.bad_status = "it fails on this one", 500
        assert_error(await place(stack.client), 503, "no_transceiver")
        assert (await stack.client.get("/readyz")).json()["can_place"]
        transceiver.bad_offer = ""
        assert (await place(stack.client)).status_code == 201


async def test_an_owner_that_does_not_answer_is_said_so(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        url = (await place(stack.client)).headers["location"]
        stack.fleet.transceivers[0].dead = True
        assert_error(await stack.client.post(f"{url}/hangup"), 502, "transceiver_failed")


async def test_two_replicas_misroute_none_of_100_mixed_requests(tmp_path: Path) -> None:
    fakes = [FakeTransceiver(pod=number) for number in range(4)]
    fleet = Fleet(fakes)
    async with signaling(tmp_path, fleet=fleet) as one, signaling(tmp_path, fleet=fleet) as two:
        clients: list[httpx.AsyncClient] = [one.client, two.client]
        turn = 0

        def next_client() -> httpx.AsyncClient:
            nonlocal turn
            turn += 1
            return clients[turn % 2]

        requests = 0
        while requests < 100:
            location = (await place(next_client())).headers["location"]
            next_client()  # so that the next request of this call goes to the other replica
            session = await next_client().get(location)
            assert session.status_code == 200
            assert (await next_client().post(f"{location}/hangup")).status_code == 200
            assert_error(await next_client().get(location), 404, "call_not_found")
            whip = await place_whip(next_client())
            headers = {
                "If-Match": whip.headers["etag"],
                "Content-Type": "application/trickle-ice-sdpfrag",
            }
            next_client()
            patched = await next_client().patch(
                whip.headers["location"],
                content=FRAGMENT,
                headers=headers,
            )
            assert patched.status_code == 204, patched.text
            assert (await next_client().delete(whip.headers["location"])).status_code == 200
            requests += 7
    assert fleet.session_count == 0
    assert sum(len(fake.created) for fake in fakes) == 2 * 15
    assert all(fake.created for fake in fakes)


async def test_the_internal_api_key_and_token_stay_out_of_answers(tmp_path: Path) -> None:
    async with signaling(tmp_path) as stack:
        answers = [await place(stack.client), await stack.client.get("/metrics"), await stack.client.get("/readyz")]
    for answer in answers:
        seen = f"{answer.text}{answer.headers}"
        assert API_KEY not in seen
        assert "internal-token" not in seen
