"""The server's Prometheus text, and waiting until it has nothing left to do."""

from __future__ import annotations

import asyncio
import re
import time

import aiohttp

from tuner.run.stream import Server

IDLE_TIMEOUT_S = 5.0
POLL_S = 0.05
#: Where a server shows no gauges: longer than the verify step after which an engine notices a closed connection.
BLIND_WAIT_S = 0.5
SCRAPE_TIMEOUT_S = 5.0

_IN_FLIGHT = re.compile(
    r"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs"
    r"|llamacpp:requests_(?:processing|deferred))(?:\{.*\})? +(\S+)",
    re.MULTILINE,
)


async def scrape(session: aiohttp.ClientSession, server: Server) -> str | None:
    """The text of `/metrics`; None where there is none or nobody answers."""
    try:
        async with asyncio.timeout(SCRAPE_TIMEOUT_S), session.get(server.url.rstrip("/") + "/metrics") as response:
            return await response.text() if response.status == 200 else None
    except (aiohttp.ClientError, OSError):  # TimeoutError is an OSError
        return None


def requests_in_flight(metrics: str) -> float | None:
    """Running and waiting requests over all ranks; None when the text has no such gauge."""
    gauges = _IN_FLIGHT.findall(metrics)
    return sum(float(value) for value in gauges) if gauges else None


async def wait_until_idle(session: aiohttp.ClientSession, server: Server, timeout_s: float = IDLE_TIMEOUT_S) -> bool:
    """Poll until no request runs or waits; False when that was not seen in time, or cannot be seen."""
    give_up_s = time.perf_counter() + timeout_s
    while time.perf_counter() < give_up_s:
        in_flight = requests_in_flight(await scrape(session, server) or "")
        if in_flight is None:
            await asyncio.sleep(BLIND_WAIT_S)
            return False
        if in_flight == 0:
            return True
        await asyncio.sleep(POLL_S)
    return False
