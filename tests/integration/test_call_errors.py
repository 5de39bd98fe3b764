"""What `usher call` says when a server refuses: words for the person at the terminal."""

import asyncio
import contextlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from usher_cli.call import api
from usher_cli.call.api import CallError, CallsApi
from usher_cli.call.report import printable


class Refusing(http.server.BaseHTTPRequestHandler):
    status = 500
    body = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  (the base class names it so)
        pass


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    status, body = request.param
    handler = type("Handler", (Refusing,), {"status": status, "body": body})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def refusal(code: str, message: str) -> bytes:
    return json.dumps({"error": {"type": "x", "code": code, "message": message, "param": None}}).encode()


def usher_call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "usher_cli", "call", *arguments], capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.parametrize(
    "url, said",
    [
        ((401, refusal("invalid_api_key", "This key is unknown.")), "wants another key (--api-key, or USHER_API_KEY)"),
        (
            (503, refusal("no_transceiver", "All are full.")),
            "no transceiver takes the call now (HTTP 503: All are full.",
        ),
        ((404, b"<h1>Not here</h1>"), "is this the base URL of usher? (HTTP 404: <h1>Not here</h1>)"),
        ((201, b"this is no SDP"), "our client can't use the answer"),
    ],
    indirect=["url"],
)
def test_a_refusal_is_told_in_words(url: str, said: str) -> None:
    done = usher_call(url, "--seconds=1", "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["summary"] == {**result["summary"], "calls": 1, "ok": 0, "failed": 1}
    assert said in result["calls"][0]["wrong"][0]
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_there_is_told_in_words() -> None:
    done = usher_call("http://127.0.0.1:1")
    assert done.returncode == 1
    assert "is `usher up` running?" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("url", [(503, refusal("x", "red \x1b[31m\x07 \x9b2J\u202e\ud800\r\nline"))], indirect=True)
def test_what_a_server_says_does_not_steer_the_terminal(url: str) -> None:
    done = usher_call(url, "--seconds=1")
    assert done.returncode == 1
    assert "no transceiver takes the call now (HTTP 503: red [31m 2J line)" in done.stdout
    assert all(character.isprintable() or character == "\n" for character in done.stdout + done.stderr)


def test_text_for_the_terminal_is_one_line_without_control_characters() -> None:
    everything = "".join(map(chr, range(0x11000)))
    assert printable(everything).isprintable()
    assert printable("a\tb\n\u2028c é 日本") == "a b c é 日本"


@contextlib.asynccontextmanager
async def answering(head: bytes, part: bytes, every_s: float) -> AsyncIterator[str]:
    """A server that sends a head, and then the same part again and again without an end."""

    ended = asyncio.Event()
    serving = set()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            writer.write(head)
            while not ended.is_set():
                writer.write(part)
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), every_s)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.close()
        ended.set()
        await asyncio.gather(*filter(None, serving))


@pytest.mark.parametrize(
    "head, part",
    [
        (b"", b"X"),
        (b"HTTP/1.1 201 Created\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 201 Created\r\nContent-Length: 100000\r\n\r\n", b"v"),
        (b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nv\r\n"),
    ],
)
async def test_a_server_that_dribbles_its_answer_is_given_up(
    head: bytes, part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "ANSWER_LIMIT_S", 0.5)
    async with answering(head, part, 0.02) as url, CallsApi(url, None) as calls, asyncio.timeout(5):
        with pytest.raises(CallError, match="the server is at fault: no whole answer"):
            await calls.place("v=0")
        assert await calls.describe(url) == {}
        await calls.hang_up(url)


@pytest.mark.parametrize("encoding", [b"", b"Content-Encoding: gzip\r\n"])
async def test_an_answer_without_end_is_given_up(encoding: bytes) -> None:
    head = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n" + encoding + b"\r\n"
    part = b"1000\r\n" + bytes(0x1000) + b"\r\n"
    async with answering(head, part, 0.001) as url, CallsApi(url, None) as calls, asyncio.timeout(5):
        with pytest.raises(CallError, match="the server is at fault: its answer has more than 128 KiB"):
            await calls.place("v=0")
        assert await calls.describe(url) == {}
        await calls.hang_up(url)


@pytest.mark.parametrize("location", [b"http://[::1", b"http://a:99999/x", b"file:///x", b"//a..b/"])
async def test_a_call_url_that_is_none_is_the_fault_of_the_server(location: bytes) -> None:
    head = b"HTTP/1.1 201 Created\r\nContent-Length: 1\r\nLocation: " + location + b"\r\n\r\n"
    async with answering(head, b"v", 1) as url, CallsApi(url, None) as calls:
        with pytest.raises(CallError, match="the server is at fault: its Location"):
            await calls.place("v=0")


@pytest.mark.parametrize("body", [b"[" * 100_000, b"1" * 5000, b"\xff", b"[]", b'{"error": {"message": null}}'])
async def test_a_refusal_of_any_form_is_told(body: bytes) -> None:
    for status in (b"200 OK", b"500 Broken"):
        head = b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        async with answering(head + body, b"", 1) as url, CallsApi(url, None) as calls:
            with pytest.raises(CallError, match="the server refused"):
                await calls.place("v=0")
            assert isinstance(await calls.describe(url), dict)
