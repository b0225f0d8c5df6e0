"""One request of a losslessness test and its answer as token ids and log-probabilities. Answers are not streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tuner.errors import EngineError, TunerError, UserError
from tuner.measure.lossless_greedy import Token
from tuner.run.sse import error_message
from tuner.run.stream import PATHS, Server

#: Asks for token ids under the names that vLLM and SGLang have for it; servers ignore what they do not know.
ID_FIELDS: Mapping[str, Any] = {"stream": False, "return_token_ids": True}
#: Log-probabilities of so many tokens a position: the most vLLM gives unless it was started otherwise.
TOP = 20


class Lost(EngineError):
    """The server died, hangs or broke down over a request."""


class RefusedError(EngineError):
    """The server answered a request with an error of its own."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer. `scores`: by position, the likeliest tokens' log-probabilities; `ended`: not cut by its cap."""

    tokens: tuple[Token, ...]
    scores: tuple[Mapping[Token, float], ...]
    ended: bool
    text: str


async def ask(
    session: aiohttp.ClientSession, server: Server, endpoint: str, body: Mapping[str, Any], timeout_s: float
) -> tuple[Choice, ...]:
    """All n answers to one request."""
    url = server.url.rstrip("/") + PATHS[endpoint]
    payload = {"model": server.model, **body, **ID_FIELDS}
    try:
        async with asyncio.timeout(timeout_s), session.post(url, json=payload) as response:
            text = await response.text(errors="replace")
    except TimeoutError:
        raise Lost(f"{server.url} gave no answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise Lost(f"{server.url} is lost ({error or type(error).__name__})") from None
    if response.status >= 500:  # vLLM answers so once its engine core is dead
        raise Lost(f"{server.url} answered HTTP {response.status}: {error_message(text).rstrip('.')}")
    if response.status != 200:
        raise RefusedError(f"HTTP {response.status}: {error_message(text)}")
    try:
        return tuple(read_choice(choice) for choice in json.loads(text)["choices"])
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{server.url}: the answer is no completion ({error!r})") from None


def logprob_fields(endpoint: str, engine: str | None) -> dict[str, Any]:
    """What asks for log-probabilities, by token id where the engine has a way to name ids."""
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": TOP} if endpoint == "chat" else {"logprobs": TOP}
    if engine != "sglang":
        fields["return_tokens_as_token_ids"] = True
    if engine != "vllm" and endpoint == "chat":
        fields["return_meta_info"] = True
    return fields


def read_choice(choice: Mapping[str, Any]) -> Choice:
    """Token ids as such or, on a server that returns none, the names its log-probabilities have for tokens."""
    names, scores = _scores(choice)
    ids = next((choice[key] for key in ("token_ids", "response_token_ids") if choice.get(key) is not None), None)
    by_name = bool(names) and not all(isinstance(name, int) for name in names)
    if ids is None and not names:
        raise UserError(
            "the server returns neither token ids (return_token_ids) nor log-probabilities, so its output cannot be "
            "compared token by token: use vLLM 0.10.2 or later, or SGLang 0.5.6 or later"
        )
    tokens = names if ids is None or by_name else ids
    message = choice.get("message") or {}
    return Choice(
        tokens=tuple(tokens),
        scores=tuple(scores),
        ended=choice.get("finish_reason") not in ("length", None),
        text=str(choice.get("text") or message.get("content") or ""),
    )


def _scores(choice: Mapping[str, Any]) -> tuple[list[Token], list[dict[Token, float]]]:
    """(the tokens, for each position the listed log-probabilities), from any of the three formats."""
    meta = choice.get("meta_info") or {}
    if meta.get("output_top_logprobs"):
        names = [int(row[1]) for row in meta["output_token_logprobs"]]
        ids: list[dict[Token, float]] = [
            {int(token): float(score) for score, token, *_ in rows or ()} for rows in meta["output_top_logprobs"]
        ]
        own = [float(row[0]) for row in meta["output_token_logprobs"]]
        return list(names), _with_own(names, own, ids)
    told = choice.get("logprobs") or {}
    if told.get("content"):
        rows = told["content"]
        tops: list[dict[Token, float]] = [
            {_token(one["token"]): float(one["logprob"]) for one in row.get("top_logprobs") or ()} for row in rows
        ]
        names_, own = [_token(row["token"]) for row in rows], [float(row["logprob"]) for row in rows]
        return names_, _with_own(names_, own, tops)
    if told.get("tokens"):
        names_ = [_token(name) for name in told["tokens"]]
        tops = [{_token(k): float(v) for k, v in (row or {}).items()} for row in told.get("top_logprobs") or ()]
        own = [float(value or 0.0) for value in told["token_logprobs"]]
        return names_, _with_own(names_, own, tops)
    return [], []


def _with_own(
    names: Sequence[Token], own: Sequence[float], tops: Sequence[Mapping[Token, float]]
) -> list[dict[Token, float]]:
    """The chosen token is listed too, also where it is not among the likeliest."""
    padded = [*tops, *({} for _ in range(len(names) - len(tops)))]
    return [{**row, name: score} for name, score, row in zip(names, own, padded, strict=False)]


def _token(name: str) -> Token:
    return int(name.removeprefix("token_id:")) if name.startswith("token_id:") else name


async def all_of(requests: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """All results in order; the first failure cancels the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except BaseExceptionGroup as failed:
        known = failed.subgroup(TunerError)
        raise (known or failed).exceptions[0] from None
    return [task.result() for task in tasks]
