"""What `usher call` says when a server refuses: words for the person at the terminal."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest


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
