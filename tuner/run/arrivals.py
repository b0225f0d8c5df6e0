"""When requests are sent in an open loop: absolute times, fixed by the seed before the first one is sent."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Seconds from the cell's zero, without end: exponential gaps of mean 1 / rate.

    Built on `random()`, the one draw Python keeps stable between versions, so every arm of a study and every machine
    sees the same schedule; at another rate it is the same schedule, stretched.
    """
    draw = random.Random(seed).random
    unit_time = 0.0
    while True:
        unit_time -= math.log(1.0 - draw())
        yield unit_time / rate


async def paced(schedule: Iterator[float], clock: Callable[[], float]) -> AsyncIterator[tuple[int, float]]:
    """(index, scheduled time) once that time has come on `clock`.

    Sleeps are absolute: a send that was late does not push the later ones back.
    """
    for index, scheduled_s in enumerate(schedule):
        # Even when behind schedule the loop gets a turn, so answers are read between two late sends.
        await asyncio.sleep(max(0.0, scheduled_s - clock()))
        yield index, scheduled_s
