"""Two scrapes of a server that serves somebody's traffic: nothing is sent to it but GET /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from tuner.errors import UserError


async def scrape_twice(
    url: str, seconds: float, api_key: str | None = None, on_wait: Callable[[float], None] | None = None
) -> tuple[str, str]:
    """The metrics text at the start and after `seconds`. UserError when the address does not answer with metrics."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=10)) as session:
        before = await _metrics(session, url)
        for second in range(int(seconds)):
            if on_wait:
                on_wait(seconds - second)
            await asyncio.sleep(1)
        await asyncio.sleep(seconds % 1)
        return before, await _metrics(session, url)


async def _metrics(session: aiohttp.ClientSession, url: str) -> str:
    address = url.rstrip("/").removesuffix("/metrics").removesuffix("/v1") + "/metrics"
    try:
        async with session.get(address) as response:
            text = await response.text()
            status = response.status
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise UserError(f"{address} does not answer ({error or type(error).__name__}): is the server up?") from None
    if status != 200:
        hint = "SGLang exports metrics with --enable-metrics only" if status == 404 else "see --api-key-env"
        raise UserError(f"GET {address} answered {status}: {hint}")
    return text
