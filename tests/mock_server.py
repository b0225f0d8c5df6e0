"""The mock engine's HTTP face, and everything that can be made to go wrong with it."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from aiohttp import web
from mock_machine import Broken, Job, Machine, Sim, Speculation
from mock_wire import Wire, constrained, json_framing, prometheus_text, server_info

VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}


@dataclass(frozen=True)
class Faults:
    """What goes wrong. `…_at_request`: the n-th generation request, from 1; `…_every`: each n-th. 0, False: never."""

    die_at_start: bool = False
    die_at_request: int = 0
    never_ready: bool = False
    ready_after_s: float = 0.0
    hang_at_request: int = 0
    http_500_every: int = 0
    error_in_stream_every: int = 0
    no_finish_every: int = 0
    cut_event_every: int = 0
    reset_every: int = 0
    stuck_json: bool = False  # the text stops after `{"` while tokens are still being spent
    no_usage: bool = False
    final_usage_only: bool = False
    merge_steps: int = 1  # this many steps' tokens share a chunk
    first_token_delay_s: float = 0.0
    temperature_ignored: bool = False  # with speculation and without
    # What follows shows under speculation only.
    spec_greedy: bool = False  # temperature is ignored from the second token on
    tv_shift: float = 0.0
    bonus_bias: float = 0.0
    stale_kv_every: int = 0
    cut_json: bool = False  # an answer bound to a grammar ends in the middle
    die_at_json: bool = False
    hang_at_json: bool = False
    ignore_sigterm: bool = False
    grandchild: bool = False  # a child process in the same group that outlives the engine

    @property
    def broken(self) -> Broken:
        return Broken(self.spec_greedy, self.tv_shift, self.bonus_bias, self.stale_kv_every)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Faults:
        """`name` or `name=value` each."""
        kinds = {f.name: {"bool": bool, "int": int, "float": float}[str(f.type)] for f in fields(cls)}
        given = dict(text.partition("=")[::2] for text in texts)
        return cls(**{name: kinds[name](json.loads(value or "true")) for name, value in given.items()})


@dataclass(frozen=True)
class Config:
    flavour: str = "vllm"
    model: str = "mock-model"
    served_name: str = "mock-model"
    api_key: str | None = None
    spec: Speculation = field(default_factory=Speculation)
    max_running: int = 64
    max_model_len: int = 8192
    prefix_caching: bool = False
    metrics_level: str = "none"
    has_metrics: bool = True
    sim: Sim = field(default_factory=Sim)
    faults: Faults = field(default_factory=Faults)
    args: tuple[tuple[str, Any], ...] = ()


class MockEngine:
    """The HTTP face. `die` is what an engine's death means here: of the process, or of the listening socket."""

    def __init__(self, config: Config) -> None:
        self.config, self.url = config, ""
        self.machine = Machine(
            config.sim, config.spec, config.max_running, config.prefix_caching, config.faults.temperature_ignored,
            config.faults.broken,
        )  # fmt: skip
        self.ready = not config.faults.never_ready
        self.die = self._drop_dead
        self.bodies: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        self._flushed_at = 0
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._stepping: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        app = web.Application(middlewares=[self._check_key])
        app.add_routes(
            [web.get("/health", self._health), web.get("/ready", self._health), web.get("/v1/models", self._models),
             web.get("/metrics", self._metrics), web.get("/version", self._version),
             web.get("/server_info", self._server_info), web.post("/flush_cache", self._flush_cache),
             web.get("/_truth", self._truth), web.post("/v1/chat/completions", self._generate),
             web.post("/v1/completions", self._generate)]
        )  # fmt: skip
        # Handlers are cancelled when their client goes away: both engines abort such requests.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener = await asyncio.get_running_loop().create_server(self._runner.server, host, port)
        self.url = "http://{}:{}".format(*self._listener.sockets[0].getsockname()[:2])
        self._stepping = asyncio.create_task(self.machine.run())

    async def stop(self) -> None:
        if self._stepping and self._runner and self._listener:
            self._listener.close()
            self._stepping.cancel()
            await asyncio.gather(self._stepping, return_exceptions=True)
            await self._runner.cleanup()

    def _drop_dead(self) -> None:
        """Stop listening and reset every connection, as the death of a process would."""
        assert self._listener is not None
        assert self._runner is not None
        assert self._runner.server is not None
        self._listener.close()
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    @web.middleware
    async def _check_key(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """vLLM guards /v1; SGLang guards all but health, readiness and metrics. Tests may always ask for the truth."""
        open_paths = ("/health", "/ready", "/metrics", "/_truth")
        guarded = request.path.startswith("/v1") or (
            self.config.flavour == "sglang" and not request.path.startswith(open_paths)
        )
        given = request.headers.get("Authorization", "")
        if self.config.api_key and guarded and given != f"Bearer {self.config.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)  # type: ignore[no-any-return]

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503)

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.config.served_name, "object": "model", "root": self.config.model, "owned_by": "mock",
                "max_model_len": self.config.max_model_len}  # fmt: skip
        return web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self.config.has_metrics:
            raise web.HTTPNotFound
        return web.Response(text=prometheus_text(self.config.flavour, self.machine, self.config.served_name))

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": VERSIONS[self.config.flavour]})

    async def _server_info(self, request: web.Request) -> web.Response:
        if self.config.flavour != "sglang":
            raise web.HTTPNotFound
        info = server_info(self.machine, dict(self.config.args), VERSIONS["sglang"], self._flushed_at)
        return web.json_response(info)

    async def _flush_cache(self, request: web.Request) -> web.Response:
        self._flushed_at = len(self.machine.jobs)
        return web.Response(text="Cache flushed.")

    async def _truth(self, request: web.Request) -> web.Response:
        return web.json_response([job.truth() for job in self.machine.jobs])

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        number, faults, chat = next(self._numbers), self.config.faults, request.path.endswith("chat/completions")
        if number == faults.die_at_request:
            self.die()
        if number == faults.hang_at_request:
            self.machine.frozen = True
        if _each(faults.http_500_every, number):
            return _refuse(500, "EngineCore encountered an issue. See stack trace for the root cause.")
        body = await request.json()
        self.bodies.append(body)
        if body.get("model") != self.config.served_name:
            return _refuse(404, f"The model `{body.get('model')}` does not exist.")
        prompt = "\n".join(_plain(m["content"]) for m in body["messages"]) if chat else body["prompt"]
        if int(body.get("max_tokens") or 16) > self.config.max_model_len:
            return _refuse(400, f"This model's maximum context length is {self.config.max_model_len} tokens.")
        await asyncio.sleep(faults.first_token_delay_s)
        if constrained(body) and self.config.spec.n:
            await self._mishandle_json()
        choices = 1 if body.get("stream") else int(body.get("n") or 1)
        jobs = [self.machine.submit(body, prompt, choice) for choice in range(choices)]
        try:
            return await self._answer(request, body, jobs, chat, number)
        finally:
            for job in jobs:
                self.machine.abort(job)

    async def _mishandle_json(self) -> None:
        if self.config.faults.die_at_json:
            self.die()
        if self.config.faults.hang_at_json:
            await asyncio.Event().wait()

    async def _answer(
        self, request: web.Request, body: Mapping[str, Any], jobs: Sequence[Job], chat: bool, number: int
    ) -> web.StreamResponse:
        config, faults, options = self.config, self.config.faults, body.get("stream_options") or {}
        usage = bool(options.get("include_usage")) and not faults.no_usage
        wire = Wire(
            config.flavour, chat, config.served_name, jobs[0], body, config.spec.n, config.metrics_level,
            usage_on_chunks=usage and bool(options.get("continuous_usage_stats")) and not faults.final_usage_only,
            usage_at_end=usage, json=json_framing(body, faults.cut_json and config.spec.n > 0),
        )  # fmt: skip
        if not body.get("stream"):
            for job in jobs:
                while job.finish is None:
                    await job.outbox.get()
            return web.json_response(wire.whole(jobs))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await self._stream(request, response, wire, number)
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse, wire: Wire, number: int) -> None:
        faults, n, finish, first = self.config.faults, 0, None, True
        while finish is None:
            fresh, finish = await wire.job.outbox.get()
            for _ in range(faults.merge_steps - 1):
                if finish is None:
                    more, finish = await wire.job.outbox.get()
                    fresh = fresh + more
            n += len(fresh)
            if first:
                for data in wire.head():
                    await response.write(data)
            if finish is not None and await self._break_off(request, response, number):
                return
            stuck = None if not faults.stuck_json else '{"' if first else ""
            wire.job.sent.append((time.perf_counter(), n))
            for data in wire.tokens(fresh, n, finish, stuck):
                await response.write(data)
            first = False
        for data in wire.tail(n):
            await response.write(data)

    async def _break_off(self, request: web.Request, response: web.StreamResponse, number: int) -> bool:
        """Spoil the end of an answer, if it is this request's turn."""
        faults = self.config.faults
        if _each(faults.reset_every, number) and request.transport is not None:
            request.transport.abort()
            return True
        if _each(faults.error_in_stream_every, number):
            error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
            await response.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\ndata: [DONE]\n\n")
            return True
        if _each(faults.cut_event_every, number):
            await response.write(b'data: {"id":"chatcmpl-1","choices":[{"index":0,"del')
            return True
        if _each(faults.no_finish_every, number):
            await response.write(b"data: [DONE]\n\n")
            return True
        return False


def _plain(content: str | list[dict[str, str]]) -> str:
    """A message's text; clients may send it in parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _each(every: int, number: int) -> bool:
    return every > 0 and number % every == 0


def _refuse(status: int, message: str) -> web.Response:
    kind = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}[status]
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)
