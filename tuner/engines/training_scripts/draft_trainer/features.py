"""Stage `features`: one forward pass of the target over each answer; its tapped states and its last one, on disk."""

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from draft_trainer.answers import Answer, read_answers
from draft_trainer.job import Job
from draft_trainer.processes import minutes_left, say
from draft_trainer.target import Target

#: Padded tokens of one forward pass.
PASS_TOKENS = 3072
#: Batches between two notes of how far a rank is.
NOTED = 16
FOLDERS = {False: "train", True: "held"}


@dataclass(frozen=True)
class Document:
    """Where an answer lies in the flat files: `start` in tokens, `prompt` and `length` in tokens."""

    id: str
    source: str
    temperature: float
    start: int
    prompt: int
    length: int


@dataclass(frozen=True)
class Store:
    """The flat files of one folder, mapped: tokens and states [tokens, width]."""

    tokens: torch.Tensor
    states: torch.Tensor

    @classmethod
    def open(cls, folder: Path, tokens: int, width: int) -> "Store":
        def mapped(name: str, size: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.from_file(str(folder / name), shared=True, size=size, dtype=dtype)

        return cls(
            mapped("tokens.bin", tokens, torch.int32),
            mapped("states.bin", tokens * width, torch.bfloat16).view(tokens, width),
        )


def laid_out(answers: Sequence[Answer]) -> list[Document]:
    start, documents = 0, []
    for one in answers:
        documents.append(Document(one.id, one.source, one.temperature, start, len(one.prompt), one.length))
        start += one.length
    return documents


def passes(answers: Sequence[Answer]) -> list[range]:
    """Neighbours of similar length, as many as one padded pass takes; `answers` ascend by length."""
    batches, start = [], 0
    for index in range(len(answers)):
        if index > start and (index + 1 - start) * answers[index].length > PASS_TOKENS:
            batches.append(range(start, index))
            start = index
    return [*batches, range(start, len(answers))] if answers else []


def features(job: Job, rank: int) -> None:
    answers = read_answers(Path(job.data))
    for held in (True, False):
        chosen = [one for one in answers if one.held is held]
        if not chosen:
            kind = "held-out" if held else "training"
            raise ValueError(f"no {kind} prompt has an answer of four tokens or more; give more prompts")
        folder = Path(job.data) / FOLDERS[held]
        folder.mkdir(exist_ok=True)
        documents = laid_out(chosen)
        if rank == 0:
            listed = {"taps": list(job.taps), "documents": [asdict(document) for document in documents]}
            (folder / "documents.json").write_text(json.dumps(listed), encoding="utf-8")
        _fill(job, rank, chosen, documents, folder)


def _fill(job: Job, rank: int, answers: Sequence[Answer], documents: Sequence[Document], folder: Path) -> None:
    target = Target(job.target)
    store = Store.open(folder, sum(d.length for d in documents), (len(job.taps) + 1) * target.hidden)
    mine = passes(answers)[rank :: job.ranks]
    noted = folder / f"passed-{rank}"
    passed = int(noted.read_text()) if noted.exists() else 0
    reader = StateReader(job, target, shared_prefix(answers))
    began_s = monotonic()
    for number in range(passed, len(mine)):
        reader.fill(store, [answers[i] for i in mine[number]], [documents[i] for i in mine[number]])
        if (number + 1) % NOTED == 0 or number + 1 == len(mine):
            noted.write_text(str(number + 1))
            share = (number + 1 - passed) / (len(mine) - passed)
            left = minutes_left((monotonic() - began_s) * (1 - share) / share)
            if rank == 0:
                say(f"states of {folder.name} {number + 1}/{len(mine)} passes{left}")


class StateReader:
    """The target without its output matrix.

    `prefix`: tokens that every text begins with, such as a system prompt; they are passed through once.
    """

    def __init__(self, job: Job, target: Target, prefix: Sequence[int] = ()) -> None:
        from transformers import AutoModelForCausalLM

        dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
        self._model = AutoModelForCausalLM.from_pretrained(job.target, dtype=dtype).eval().model
        self._taps = job.taps
        self._prefix = torch.tensor([prefix], dtype=torch.long)
        self._cache, self._read = None, torch.zeros(1, 0, (len(job.taps) + 1) * target.hidden, dtype=dtype)
        if prefix:
            with torch.inference_mode():
                self._read, self._cache = self._passed(self._prefix, None)

    def _passed(self, ids: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        """([texts, places, width], the cache behind them)."""
        out = self._model(ids, past_key_values=cache, output_hidden_states=True, use_cache=True)
        read = torch.cat([*(out.hidden_states[tap] for tap in self._taps), out.last_hidden_state], -1)
        return read, out.past_key_values

    @torch.inference_mode()
    def fill(self, store: Store, answers: Sequence[Answer], documents: Sequence[Document]) -> None:
        """Padding stands on the right, where causal attention keeps it out of everything that is read."""
        before = self._prefix.shape[1]
        ids = torch.zeros(len(answers), max(a.length for a in answers) - before, dtype=torch.long)
        for row, answer in enumerate(answers):
            ids[row, : answer.length - before] = torch.tensor((answer.prompt + answer.answer)[before:])
        cache = copy.deepcopy(self._cache)
        if cache is not None:
            cache.batch_repeat_interleave(len(answers))
        read, _ = self._passed(ids, cache)
        for row, (answer, document) in enumerate(zip(answers, documents, strict=True)):
            place = slice(document.start, document.start + document.length)
            states = torch.cat([self._read[0], read[row, : document.length - before]])
            store.tokens[place] = torch.tensor(answer.prompt + answer.answer).int()
            store.states[place] = states.to(torch.bfloat16)


def shared_prefix(answers: Sequence[Answer]) -> tuple[int, ...]:
    """What all prompts begin with, short of the last token of the shortest one."""
    shortest = min(len(answer.prompt) for answer in answers)
    by_place = zip(*(answer.prompt[: shortest - 1] for answer in answers), strict=True)
    shared = takewhile(lambda tokens: len(set(tokens)) == 1, by_place)
    return tuple(tokens[0] for tokens in shared)
