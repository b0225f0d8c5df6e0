"""What a running server says of itself over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from tuner.run.stream import Server

ANSWER_S = 10.0


async def get_json(server: Server, path: str) -> Mapping[str, Any] | None:
    """The object at a path; None where there is none, or nobody answers."""
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.get(server.url + path) as response,
        ):
            return dict(await response.json()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError, TypeError):
        return None
