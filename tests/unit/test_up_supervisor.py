"""The supervisor with programs that exist only here, and a clock that moves only by sleeping."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from usher_cli.up.supervisor import Post, Supervisor
from usher_core.errors import LocalError


@dataclass
class FakeProgram:
    pid: int
    name: str
    arguments: Sequence[str]
    signals: list[signal.Signals] = field(default_factory=list)
    needs_signals: int = 1
    _announced: asyncio.Future[dict[str, Any] | None] = field(default_factory=asyncio.Future)
    _ended: asyncio.Future[int] = field(default_factory=asyncio.Future)

    def announce(self) -> None:
        self._announced.set_result({"ready": True, "program": self.name})

    def end(self, status: int) -> None:
        if not self._announced.done():
            self._announced.set_result(None)
        if not self._ended.done():
            self._ended.set_result(status)

    async def announcement(self) -> dict[str, Any] | None:
        return await asyncio.shield(self._announced)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if len(self.signals) >= self.needs_signals:
            self.end(-number)

    def kill_group(self) -> None:
        self.end(-signal.SIGKILL)


class World:
    """Spawns fake programs, keeps the clock, and notes what the supervisor tells."""

    def __init__(self, at_spawn: Callable[[FakeProgram], None] = FakeProgram.announce) -> None:
        self.now = 0.0
        self.programs: list[FakeProgram] = []
        self.told: list[str] = []
        self.slept: list[float] = []
        self._at_spawn = at_spawn
        self.supervisor = Supervisor(self.spawn, self, self.sleep, lambda: self.now)

    async def spawn(self, name: str, arguments: Sequence[str]) -> FakeProgram:
        program = FakeProgram(100 + len(self.programs), name, arguments)
        self.programs.append(program)
        self._at_spawn(program)
        return program

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def on_ready(self, name: str, pid: int, facts: Mapping[str, Any]) -> None:
        self.told.append(f"{name} {pid} ready")

    def on_end(self, name: str) -> None:
        self.told.append(f"{name} ended")

    def fill(self, name: str, stage: int = 0, arguments: Callable[[], Sequence[str]] = list) -> asyncio.Task[None]:
        return asyncio.create_task(self.supervisor.keep(Post(name, arguments, stage)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110  (what is waited for is only in memory)
                await asyncio.sleep(0)


async def ended(*tasks: Awaitable[None]) -> None:
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)


async def test_a_program_that_dies_is_started_again_with_new_arguments() -> None:
    world = World()
    ids = iter(range(10))
    task = world.fill("transceiver-1", arguments=lambda: [f"--pod={next(ids)}"])
    await world.until(lambda: len(world.told) == 1)
    world.now += 60
    world.programs[0].end(-signal.SIGKILL)
    await world.until(lambda: len(world.told) == 3)
    assert world.told == ["transceiver-1 100 ready", "transceiver-1 ended", "transceiver-1 101 ready"]
    assert [program.arguments for program in world.programs] == [["--pod=0"], ["--pod=1"]]
    assert world.slept == [0.0]
    await world.supervisor.stop()
    await ended(task)


async def test_a_program_that_dies_again_and_again_waits_longer_each_time_and_is_never_given_up() -> None:
    world = World()
    task = world.fill("relay-1")
    for count in range(1, 9):
        await world.until(lambda: len(world.programs) == count)  # noqa: B023
        await world.until(lambda: len(world.told) == 2 * count - 1)  # noqa: B023
        world.programs[-1].end(1)
    await world.until(lambda: len(world.programs) == 9)
    assert world.slept == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    await world.supervisor.stop()
    await ended(task)


async def test_a_program_that_never_was_ready_is_given_up_after_three_tries() -> None:
    world = World(lambda program: program.end(1))
    with pytest.raises(LocalError, match=r"relay-1 does not start \(exit status 1\)"):
        await ended(world.fill("relay-1"))
    assert len(world.programs) == 3
    assert world.told == []


async def test_wrong_settings_are_not_tried_again() -> None:
    world = World(lambda program: program.end(2))
    with pytest.raises(LocalError, match="exit status 2"):
        await ended(world.fill("relay-1"))
    assert len(world.programs) == 1


async def test_wrong_settings_after_a_good_start_are_tried_again() -> None:
    world = World()
    task = world.fill("relay-1")
    await world.until(lambda: len(world.told) == 1)
    world.programs[0].end(2)
    await world.until(lambda: len(world.programs) == 2)
    await world.supervisor.stop()
    await ended(task)


async def test_stages_end_in_order_and_nothing_is_restarted() -> None:
    world = World()
    tasks = [world.fill("relay-1", stage=1), world.fill("transceiver-1", stage=0), world.fill("signaling", stage=0)]
    await world.until(lambda: len(world.told) == 3)
    await world.supervisor.stop()
    await ended(*tasks)
    assert [line for line in world.told if "ended" in line][-1] == "relay-1 ended"
    assert {program.name: program.signals for program in world.programs} == {
        name: [signal.SIGTERM] for name in ("relay-1", "transceiver-1", "signaling")
    }
    assert len(world.programs) == 3


async def test_what_drains_gets_a_second_signal() -> None:
    def stubborn(program: FakeProgram) -> None:
        program.needs_signals = 2
        program.announce()

    world = World(stubborn)
    task = world.fill("transceiver-1")
    await world.until(lambda: len(world.told) == 1)
    await world.supervisor.stop()
    await ended(task)
    assert world.programs[0].signals == [signal.SIGTERM, signal.SIGTERM]


async def test_what_heeds_no_signal_is_killed() -> None:
    def deaf(program: FakeProgram) -> None:
        program.needs_signals = 99
        program.announce()

    world = World(deaf)
    task = world.fill("transceiver-1")
    await world.until(lambda: len(world.told) == 1)
    await world.supervisor.stop()
    await ended(task)
    assert await world.programs[0].wait() == -signal.SIGKILL


async def test_a_program_still_starting_is_ended_too() -> None:
    world = World(lambda _: None)
    task = world.fill("relay-1")
    await world.until(lambda: len(world.programs) == 1)
    await world.supervisor.stop()
    await ended(task)
    assert world.told == []


async def test_what_is_given_up_in_the_middle_of_its_start_is_killed() -> None:
    world = World(lambda _: None)
    may_spawn = asyncio.Event()
    spawn = world.spawn

    async def slowly(name: str, arguments: Sequence[str]) -> FakeProgram:
        await may_spawn.wait()
        return await spawn(name, arguments)

    supervisor = Supervisor(slowly, world, world.sleep, lambda: world.now)
    task = asyncio.create_task(supervisor.keep(Post("relay-1", list)))
    await asyncio.sleep(0)
    await supervisor.stop()
    task.cancel()
    may_spawn.set()
    with pytest.raises(asyncio.CancelledError):
        await ended(task)
    assert await world.programs[0].wait() == -signal.SIGKILL
    assert world.told == []
