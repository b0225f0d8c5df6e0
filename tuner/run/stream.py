"""One streamed request over HTTP: what is asked for, when it was sent, and how it failed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tuner.run.sse import Answer, StreamReader, error_message, shorten

#: Ask for the cumulative count on every chunk; vLLM and SGLang both send it, so no tokenizer is needed.
STREAM_FIELDS: Mapping[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
REFUSED = "connection refused"
TIMED_OUT = "no complete answer"
#: uvicorn drops idle connections after 5 s: younger ones are taken again.
KEEPALIVE_S = 2.0
CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go. `model` is the served name that stands in the request body."""

    url: str
    api_key: str | None = field(repr=False)
    model: str


def open_session(server: Server) -> aiohttp.ClientSession:
    """One session a cell: no connection limit, and no total timeout, since a stream may be long."""
    traces = aiohttp.TraceConfig()
    traces.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        headers={"Authorization": f"Bearer {server.api_key}"} if server.api_key else None,
        read_bufsize=2**20,
        trace_configs=[traces],
    )


async def _note_reuse(_: aiohttp.ClientSession, context: Any, __: aiohttp.TraceConnectionReuseconnParams) -> None:
    if (reused := context.trace_request_ctx) is not None:
        reused.append(True)


async def send(
    session: aiohttp.ClientSession,
    server: Server,
    endpoint: str,
    body: Mapping[str, Any],
    reader: StreamReader,
    timeout_s: float | None,
) -> None:
    """Post `body` and read the stream into `reader`. What fails is said in `reader.error`; only cancelling raises.

    `body`: all but the model and the streaming fields, which are the same for every request.
    """
    url = server.url.rstrip("/") + PATHS[endpoint]
    payload = json.dumps({"model": server.model, **body, **STREAM_FIELDS}).encode()
    reader.sent_s = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            await _exchange(session, url, payload, reader)
    except aiohttp.ConnectionTimeoutError:
        reader.fail(f"{REFUSED}: no connection within {CONNECT_S:g} s")
    except TimeoutError:
        # The kernel has timeouts of its own, which say nothing about ours.
        reader.fail(f"{TIMED_OUT} within {timeout_s:g} s" if timeout_s else f"{TIMED_OUT}: the connection timed out")
    except aiohttp.ClientConnectorError as error:
        reader.fail(f"{REFUSED}: {error.strerror or error}")
    except (aiohttp.ClientError, OSError) as error:
        reader.fail(f"connection lost: {shorten(str(error) or type(error).__name__)}")
    finally:
        reader.ended_s = time.perf_counter()


async def send_one(
    session: aiohttp.ClientSession,
    server: Server,
    endpoint: str,
    body: Mapping[str, Any],
    timeout_s: float | None = None,
    keep_events: int | None = 4,
) -> Answer:
    """One request on its own. `keep_events=None` keeps every event, for callers that read logprobs or token ids."""
    reader = StreamReader(keep_events)
    await send(session, server, endpoint, body, reader, timeout_s)
    return reader.answer()


async def _exchange(session: aiohttp.ClientSession, url: str, payload: bytes, reader: StreamReader) -> None:
    async with await _posted(session, url, payload, reader) as response:
        if response.status != 200:
            reader.fail(f"HTTP {response.status}: {error_message(await response.text(errors='replace'))}")
            return
        async for data in response.content.iter_any():
            reader.feed(time.perf_counter(), data)
        reader.end()


async def _posted(
    session: aiohttp.ClientSession, url: str, payload: bytes, reader: StreamReader
) -> aiohttp.ClientResponse:
    """The response, its body unread. A pooled connection that turns out to be closed was idle for longer than this busy
    process noticed, and nothing was asked on it: the request is sent anew, until a fresh connection is what fails.
    """
    while True:
        reused: list[bool] = []
        try:
            headers = {"Content-Type": "application/json"}
            return await session.post(url, data=payload, headers=headers, trace_request_ctx=reused)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if not reused:
                raise
            reader.sent_s = time.perf_counter()
