"""Whether the load client itself kept up: event-loop lag, send lateness and its own processor time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from tuner.measure.records import ClientHealth, percentile

# Each tick costs about 0.2 ms of processor time, on a machine the client may share with the engine.
TICK_S = 0.025


class LoopWatch:
    """Ticks every 25 ms while load runs; what a tick is late by, an arrival's timestamp may be late by too."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []
        self._started_s = time.perf_counter()
        self._cpu_started_s = time.process_time()
        self._wall_s = 0.0
        self._cpu_s = 0.0

    async def tick(self) -> None:
        while True:
            due_s = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self._lags_s.append(max(0.0, time.perf_counter() - due_s))

    def stop(self) -> None:
        self._wall_s = time.perf_counter() - self._started_s
        self._cpu_s = time.process_time() - self._cpu_started_s

    def health(self, lateness_s: Sequence[float]) -> ClientHealth:
        """`lateness_s`: sent minus scheduled time, one entry a request."""
        # No tick at all: the loop was busy from start to stop.
        lags_s = self._lags_s or [max(0.0, self._wall_s - TICK_S)]
        return ClientHealth(
            loop_lag_p99_s=percentile(lags_s, 0.99),
            send_lateness_p99_s=percentile(list(lateness_s), 0.99) if lateness_s else 0.0,
            cpu_share=self._cpu_s / self._wall_s if self._wall_s > 0 else 0.0,
        )


@contextlib.asynccontextmanager
async def watch_loop() -> AsyncIterator[LoopWatch]:
    watch = LoopWatch()
    ticker = asyncio.create_task(watch.tick(), name="loop lag")
    try:
        yield watch
    finally:
        watch.stop()
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)
