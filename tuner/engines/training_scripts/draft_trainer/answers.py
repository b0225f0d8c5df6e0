"""The target's answers on disk: a JSON line each with the token ids as they were, and its states in a flat file."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

#: Shorter answers hold no token to draft after the first verified one.
SHORTEST = 4


@dataclass(frozen=True)
class Answer:
    """`held`: its prompt is kept out of training. `source`: the prompt set it belongs to."""

    id: str
    source: str
    held: bool
    temperature: float
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)


class AnswerFile:
    """What one rank writes: `answers-R.jsonl`, and in `states-R.bin` [tokens, width] bf16 in the same order."""

    def __init__(self, data: Path, rank: int, width: int) -> None:
        self._lines = data / f"answers-{rank}.jsonl"
        self._states = states_file(self._lines)
        self._bytes = width * torch.bfloat16.itemsize

    def mend(self) -> list[Answer]:
        """Every whole answer; torn ends of both files, of a rank that was killed, are cut off."""
        on_disk = self._states.stat().st_size if self._states.exists() else 0
        whole, tokens = [], 0
        for one in read_file(self._lines):
            if (tokens + one.length) * self._bytes > on_disk:
                break
            whole.append(one)
            tokens += one.length
        if self._lines.exists():
            size = sum(len(line) for line in self._lines.read_bytes().splitlines(keepends=True)[: len(whole)])
            with self._lines.open("r+b") as file:
                file.truncate(size)
        if self._states.exists():
            with self._states.open("r+b") as file:
                file.truncate(tokens * self._bytes)
        return whole

    def append(self, answers: Sequence[Answer], states: Sequence[torch.Tensor]) -> None:
        """States first: a line is there only if they are."""
        with self._states.open("ab") as file:
            for one in states:
                file.write(one.contiguous().view(torch.uint8).numpy().tobytes())
        with self._lines.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(answer)) + "\n" for answer in answers)


def answer_files(data: Path) -> list[Path]:
    return sorted(data.glob("answers-*.jsonl"))


def states_file(answers: Path) -> Path:
    return answers.with_name(answers.name.replace("answers-", "states-")).with_suffix(".bin")


def read_answers(data: Path) -> list[Answer]:
    """Every answer long enough to learn from."""
    return [answer for path in answer_files(data) for answer in read_file(path) if len(answer.answer) >= SHORTEST]


def read_file(path: Path) -> Iterator[Answer]:
    """Up to a torn last line, of a rank that was killed."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            row = json.loads(line)
        except ValueError:
            return
        yield Answer(**row | {"prompt": tuple(row["prompt"]), "answer": tuple(row["answer"])})
