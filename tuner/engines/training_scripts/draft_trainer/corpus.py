"""Answers with the target's states, read from disk a batch at a time, in an order that the seed alone decides."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from draft_trainer.answers import SHORTEST, Answer, answer_files, read_file, states_file

#: Lengths are blurred by so many tokens before documents are batched by them, so that batches differ by epoch.
BLUR = 30


@dataclass(frozen=True)
class Document:
    """An answer, and where its states lie: which file of states, and from which token on."""

    answer: Answer
    file: int
    start: int

    @property
    def length(self) -> int:
        return self.answer.length

    @property
    def places(self) -> slice:
        return slice(self.start, self.start + self.length)

    @property
    def tokens(self) -> torch.Tensor:
        return torch.tensor(self.answer.prompt + self.answer.answer)


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
    """The answers of a data folder, held out or not. `width`: of a state, in numbers.

    Documents ascend by length, in an order that does not hang on which rank wrote them.
    """

    def __init__(self, data: Path, held: bool, width: int) -> None:
        found, self._states = [], []
        for number, path in enumerate(answer_files(data)):
            start = 0
            for answer in read_file(path):
                if answer.held is held and len(answer.answer) >= SHORTEST:
                    found.append(Document(answer, number, start))
                start += answer.length
            mapped = torch.from_file(str(states_file(path)), shared=True, size=start * width, dtype=torch.bfloat16)
            self._states.append(mapped.view(start, width))
        if not found:
            kind = "held-out" if held else "training"
            raise ValueError(f"no {kind} prompt has an answer of {SHORTEST} tokens or more; give more prompts")
        self.width = width
        self.documents = sorted(found, key=lambda one: (one.length, one.answer.id, one.answer.temperature))

    def states(self, document: Document) -> torch.Tensor:
        """[tokens of prompt and answer, width], bf16; zero at the last token, which the target did not read."""
        return self._states[document.file][document.places]

    def counts(self, vocabulary: int) -> tuple[list[int], list[int]]:
        """How often each token id stands in answers, and in prompts."""

        def counted(texts: Iterable[tuple[int, ...]]) -> list[int]:
            ids = torch.tensor([token for text in texts for token in text], dtype=torch.long)
            return torch.bincount(ids, minlength=vocabulary).tolist()

        answers = [document.answer for document in self.documents]
        return counted(one.answer for one in answers), counted(one.prompt for one in answers)

    def batch(self, chosen: Sequence[int]) -> Batch:
        documents = [self.documents[index] for index in chosen]
        shape = (len(documents), max(document.length for document in documents))
        tokens = torch.zeros(shape, dtype=torch.long)
        states = torch.zeros(*shape, self.width, dtype=torch.bfloat16)
        for row, document in enumerate(documents):
            tokens[row, : document.length] = document.tokens
            states[row, : document.length] = self.states(document)
        lengths = torch.tensor([document.length for document in documents])
        return Batch(tokens, states, lengths, torch.tensor([len(document.answer.prompt) for document in documents]))

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
