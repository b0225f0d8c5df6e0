"""Requests bound to a grammar: their answers must end and parse under speculation wherever they do without it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from tuner.measure.lossless import Structured
from tuner.measure.lossless_records import StructuredAnswer
from tuner.run.stream import Server
from tuner.run.verify_ask import RefusedError, all_of, ask
from tuner.run.verify_task import Task, what_is_wrong


async def structured_answers(
    session: aiohttp.ClientSession, server: Server, task: Task
) -> tuple[StructuredAnswer, ...]:
    """Answers bound to a grammar, several at a time: that is where engines have died."""
    gate = asyncio.Semaphore(max(task.concurrency, task.other))

    async def one(prompt: str, body: Mapping[str, Any]) -> StructuredAnswer:
        async with gate:
            try:
                (choice,) = await ask(session, server, task.endpoint, body, task.timeout_s)
            except RefusedError as refused:
                return StructuredAnswer(prompt, f"it was refused ({refused})")
        return StructuredAnswer(prompt, what_is_wrong(body, choice))

    return tuple(await all_of([one(prompt, body) for prompt, body in task.structured]))


def judge_structured(off: Sequence[StructuredAnswer], spec: Sequence[StructuredAnswer]) -> Structured | None:
    """Only what off managed is asked of speculation."""
    if not spec:
        return None
    fine = {answer.prompt for answer in off if answer.wrong is None}
    broken = [answer for answer in spec if answer.wrong is not None and answer.prompt in fine]
    return Structured(
        asked=len(spec),
        whole=sum(answer.wrong is None for answer in spec),
        off_whole=len(fine),
        broken=f"'{broken[0].prompt}': {broken[0].wrong}" if broken else None,
    )
