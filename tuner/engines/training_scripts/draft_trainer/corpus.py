"""Answers with the target's states, read from disk a batch at a time, in an order that the seed alone decides."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from draft_trainer.features import Document, Store

#: Lengths are blurred by so many tokens before documents are batched by them, so that batches differ by epoch.
BLUR = 30


@dataclass(frozen=True)
class Batch:
    """Documents padded on the right to M tokens, and the places in them that drafting starts from.

    A row is a place i of the flattened [B, M]: the target's states at i and the token at i + 1 are known, the first
    drafted token is the one at i + 2. Rows begin at the prompt's last token and end where i + 2 is the last token.
    """

    tokens: torch.Tensor
    states: torch.Tensor
    lengths: torch.Tensor
    prompts: torch.Tensor

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @cached_property
    def rows(self) -> torch.Tensor:
        places = torch.arange(self.width)
        inside = (places >= self.prompts[:, None] - 1) & (places <= self.lengths[:, None] - 3)
        return inside.flatten().nonzero().squeeze(1)

    @cached_property
    def row_of(self) -> torch.Tensor:
        """For each place, which row it is; -1 where it is none."""
        found = torch.full((self.tokens.numel(),), -1)
        return found.index_copy(0, self.rows, torch.arange(len(self.rows)))

    @cached_property
    def next_tokens(self) -> torch.Tensor:
        """[B * M]: the token at i + 1, as engines shift a draft's input ids by one."""
        return self.tokens.roll(-1, 1).flatten()

    def positions(self, rows: torch.Tensor) -> torch.Tensor:
        return rows % self.width

    def drafted_at(self, rows: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(row whose next token step `step` of each row drafts, whether the answer is that long)."""
        there = self.positions(rows) + step <= self.lengths[rows // self.width] - 3
        return self.row_of[(rows + step).clamp_max(self.tokens.numel() - 1)].clamp_min(0), there

    def token_after(self, rows: torch.Tensor, ahead: int) -> torch.Tensor:
        return self.tokens.flatten()[(rows + ahead).clamp_max(self.tokens.numel() - 1)]


class Corpus:
    """One folder that the stage `features` filled."""

    def __init__(self, folder: Path, hidden: int) -> None:
        listed = json.loads((folder / "documents.json").read_text(encoding="utf-8"))
        self.documents = [Document(**row) for row in listed["documents"]]
        self.taps = tuple(listed["taps"])
        self.tokens = sum(document.length for document in self.documents)
        self.store = Store.open(folder, self.tokens, (len(self.taps) + 1) * hidden)

    @property
    def answer_tokens(self) -> int:
        return sum(document.length - document.prompt for document in self.documents)

    def counts(self, vocabulary: int) -> tuple[list[int], list[int]]:
        """How often each token id stands in answers, and in prompts."""
        in_answer = torch.zeros(self.tokens, dtype=torch.bool)
        for document in self.documents:
            in_answer[document.start + document.prompt : document.start + document.length] = True
        ids = self.store.tokens.long()
        answered = torch.bincount(ids[in_answer], minlength=vocabulary)
        return answered.tolist(), torch.bincount(ids[~in_answer], minlength=vocabulary).tolist()

    def batch(self, chosen: Sequence[int]) -> Batch:
        documents = [self.documents[index] for index in chosen]
        width = max(document.length for document in documents)
        shape = (len(documents), width)
        tokens = torch.zeros(shape, dtype=torch.long)
        states = torch.zeros(*shape, self.store.states.shape[1], dtype=torch.bfloat16)
        for row, document in enumerate(documents):
            place = slice(document.start, document.start + document.length)
            tokens[row, : document.length] = self.store.tokens[place]
            states[row, : document.length] = self.store.states[place]
        lengths = torch.tensor([document.length for document in documents])
        return Batch(tokens, states, lengths, torch.tensor([document.prompt for document in documents]))

    def epoch(self, number: int, rows: int, seed: int) -> list[list[int]]:
        """Batches of at most `rows` padded tokens, by similar length, in random order: a function of these alone."""
        draw = random.Random(f"{seed}/{number}")
        blurred = [(document.length + draw.random() * BLUR, i) for i, document in enumerate(self.documents)]
        batches: list[list[int]] = []
        width = 0
        for _, index in sorted(blurred):
            length = self.documents[index].length
            if batches and (len(batches[-1]) + 1) * max(width, length) <= rows:
                batches[-1].append(index)
                width = max(width, length)
            else:
                batches.append([index])
                width = length
        draw.shuffle(batches)
        return batches

    def stream(self, rows: int, seed: int, rank: int, ranks: int, start: int) -> Iterator[list[int]]:
        """This rank's batches from optimiser step `start` on, without end; all ranks have as many an epoch."""
        number = 0
        while True:
            batches = self.epoch(number, rows, seed)
            each = max(1, len(batches) // ranks)
            for step in range(min(start, each), each):
                yield batches[(step * ranks + rank) % len(batches)]
            start, number = max(0, start - each), number + 1
