"""Clients that speak through relays, transceivers that answer by themselves, and a flood of faked speech."""

from __future__ import annotations

import contextlib
import itertools
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

from tests.relay_network import DEADLINE, Client, FakeTransceiver, RelayProcess, until
from tests.relay_rig import ALIVE, HOP_KEY, POD_A, session
from usher_core import hop
from usher_core.hop import LAST_HOP, OVER_A_TRUNK, HopType, Outer, Record
from usher_core.ids import ClientPath, Route
from usher_core.rtp import peek_ssrc

SSRC = 77
SSRC_LENGTH = 4
FRAME = 0.02
IP_PKTINFO = 8
ANSWER = b"\x80answer to "


class Owner:
    """A transceiver that answers as the real one does; of SRTP it knows by the SSRC whose it is."""

    def __init__(self, pod: FakeTransceiver, *ssrcs: int) -> None:
        self.pod = pod
        self.ssrcs = set(ssrcs)
        self.paths: set[ClientPath] = set()
        self.asked = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self.pod.socket.settimeout(0.05)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                self.serve()

    def serve(self) -> None:
        """Take one datagram and answer it. Raises TimeoutError or BlockingIOError where none comes."""
        datagram, relay = self.pod.socket.recvfrom(65_535)
        kind = datagram[1]
        if kind == HopType.PROBE:
            return
        if kind == HopType.WHO_HAS:
            self.asked += 1
            if (ssrc := int.from_bytes(datagram[-SSRC_LENGTH:])) and ssrc not in self.ssrcs:
                return
        parsed = hop.parse(datagram)
        slot = parsed.outer.return_slot
        for record in parsed.records:
            said = self._on_question(record) if kind == HopType.WHO_HAS else self._on_data(record, slot)
            if said is not None:
                self.pod.socket.sendto(said, relay)

    def _on_question(self, record: Record) -> bytes | None:
        ssrc = int.from_bytes(record.payload)
        known = ssrc in self.ssrcs if ssrc else record.path in self.paths
        return self._hop(HopType.HERE, record.path, record.payload) if known else None

    def _on_data(self, record: Record, slot: int) -> bytes | None:
        payload = record.payload
        if payload[0] < 2 or (payload[0] >= 128 and peek_ssrc(payload) in self.ssrcs):
            self.paths.add(record.path)
        if record.path not in self.paths:
            return None
        return self._hop(HopType.DATA, record.path, ANSWER + payload[:60], ALIVE, slot)

    def _hop(self, kind: HopType, path: ClientPath, payload: bytes, flags: int = 0, slot: int = 0) -> bytes:
        route = self.pod.route
        hops = OVER_A_TRUNK if slot else LAST_HOP
        outer = Outer(kind, True, route.cluster, route.pod, route.worker, 3, int(time.time() * 1000), hops, slot)
        return hop.encode(outer, (Record(path, payload, flags),), HOP_KEY)


def heard(client: Client) -> list[bytes]:
    """The answers that have come."""
    client.socket.setblocking(False)
    answers: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            answers.append(client.socket.recv(65_535))
    return answers


def speech(number: int, ssrc: int = SSRC) -> bytes:
    return b"\x80\x6f" + number.to_bytes(2) + bytes(4) + ssrc.to_bytes(4) + bytes(148)


def speak(client: Client, frames: int, ssrc: int = SSRC) -> int:
    """Send so much speech; return the longest gap in what was answered, in frames.

    It counts packets and no time, so a busy machine shows no gap that a relay did not make.
    """
    answers: list[bytes] = []
    for number in range(frames):
        client.send(speech(number, ssrc))
        time.sleep(FRAME)
        answers += heard(client)
    end = time.monotonic() + DEADLINE
    while speech(frames - 1, ssrc)[:12] not in numbers(answers) and time.monotonic() < end:
        time.sleep(FRAME)
        answers += heard(client)
    known = numbers(answers)
    lost = [speech(number, ssrc)[:12] not in known for number in range(frames)]
    return max(len(list(run)) if is_lost else 0 for is_lost, run in itertools.groupby(lost))


def numbers(answers: list[bytes]) -> set[bytes]:
    return {answer.removeprefix(ANSWER)[:12] for answer in answers}


def send_checks(clients: list[Client], route_of: Callable[[int], Route]) -> None:
    """Send the first check of each client, with a session of its own; no more at a time than a buffer takes."""
    for number, client in enumerate(clients):
        client.send(session(route_of(number), number).check())
        if number % 20 == 19:
            time.sleep(0.02)


def connect(client: Client, route: Route = POD_A) -> None:
    client.send(session(route).check())
    until(lambda: heard(client), "the check is answered")


def move(client: Client, relay: RelayProcess) -> None:
    host, _, port = relay.udp.rpartition(":")
    client.relay = (host, int(port))


class Crowd:
    """Many clients that send speech, and note how often each was answered and the longest time between."""

    FIRST_SSRC = 1_000
    """Each has one of its own: of a common one, it would be found by that."""

    def __init__(self, clients: list[Client], every: float) -> None:
        self.clients = clients
        self.begin()
        for client in clients:
            client.socket.setblocking(False)
        self._every = every
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._speak, self._listen)]

    def begin(self) -> None:
        """Forget what was noted."""
        self.last = [time.monotonic()] * len(self.clients)
        self.gaps = [0.0] * len(self.clients)
        self.answers = [0] * len(self.clients)

    def outlive(
        self, first: RelayProcess, successor: Callable[[], RelayProcess]
    ) -> tuple[RelayProcess, dict[str, list[float]]]:
        """Kill the relay of all and move them to its successor; return that, and `longest` before and after."""
        before = self.longest()
        first.signal(signal.SIGKILL)
        first.wait()
        second = successor()
        for client in self.clients:
            move(client, second)
        self.begin()
        return second, {"before": before, "after": self.longest()}

    def longest(self) -> list[float]:
        """p50, p99 and the most of the longest times between two answers, once each client had 10."""
        until(lambda: min(self.answers) >= 10, "all are answered", 20)
        gaps = sorted(self.gaps)
        return [round(gaps[at], 3) for at in (len(gaps) // 2, len(gaps) * 99 // 100, -1)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _speak(self) -> None:
        number, pause = 0, self._every / len(self.clients)
        due = time.monotonic()
        while not self._stopping.is_set():
            number += 1
            for nth, client in enumerate(self.clients):
                client.send(speech(number & 0xFFFF, self.FIRST_SSRC + nth))
                due += pause
                if (left := due - time.monotonic()) > 0.005:
                    time.sleep(left)

    def _listen(self) -> None:
        poller = select.epoll()
        numbers = {client.socket.fileno(): number for number, client in enumerate(self.clients)}
        for descriptor in numbers:
            poller.register(descriptor, select.EPOLLIN)
        while not self._stopping.is_set():
            for descriptor, _ in poller.poll(0.05):
                number = numbers[descriptor]
                now = time.monotonic()
                with contextlib.suppress(BlockingIOError):
                    while True:
                        self.clients[number].socket.recv(2_000)
                self.gaps[number] = max(self.gaps[number], now - self.last[number])
                self.last[number] = now
                self.answers[number] += 1
        poller.close()


class Flood:
    """Sends speech from one faked address after the other, 5,000 a second; loopback is full of addresses."""

    def __init__(self, relay: str) -> None:
        self.sent = 0
        self.began = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        host, _, port = relay.rpartition(":")
        self._relay = (host, int(port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def start(self) -> None:
        self.began = time.monotonic()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for _ in range(50):
                self.sent += 1
                source = bytes((127, 1 + (self.sent >> 16), self.sent >> 8 & 255, self.sent & 255))
                info = [(socket.IPPROTO_IP, IP_PKTINFO, bytes(4) + source + bytes(4))]
                with contextlib.suppress(BlockingIOError):
                    self._socket.sendmsg([speech(0, 1_000 + self.sent)], info, socket.MSG_DONTWAIT, self._relay)
            time.sleep(0.01)
