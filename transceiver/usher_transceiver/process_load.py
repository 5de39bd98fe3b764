"""How busy this process is: the CPU that it used lately, and how late its loop was.

The loop's lag is looked at ten times a second whether or not there are calls, so that an idle transceiver can say that
something else on its machine holds it up. Both numbers are about the last `WINDOW_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

PROBE_S: Final = 0.1
WINDOW_S: Final = 5.0


class ProcessLoad:
    """See the module.

    Args:
        clock: seconds, monotonic.
        cpu_clock: seconds of CPU that all threads of the process have used.
    """

    def __init__(self, clock: Callable[[], float], cpu_clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        count = round(WINDOW_S / PROBE_S)
        self._used: deque[tuple[float, float]] = deque([(clock(), cpu_clock())], maxlen=count + 1)
        self._late: deque[float] = deque(maxlen=count)

    @property
    def cpu_seconds(self) -> float:
        """CPU used since the start."""
        return self._cpu_clock()

    @property
    def cores(self) -> float:
        """CPU used lately, in cores: 1.0 is one that was never idle."""
        then, used = self._used[0]
        return max(0.0, self._cpu_clock() - used) / max(self._clock() - then, PROBE_S)

    @property
    def lag(self) -> float:
        """Seconds that the loop was late at most, lately."""
        return max(self._late, default=0.0)

    def probed(self, late: float) -> None:
        """Note that a probe came `late` seconds after its time."""
        self._late.append(max(0.0, late))
        self._used.append((self._clock(), self._cpu_clock()))

    async def run(self) -> None:
        """Probe the loop for ever."""
        while True:
            due = self._clock() + PROBE_S
            await asyncio.sleep(PROBE_S)
            self.probed(self._clock() - due)
