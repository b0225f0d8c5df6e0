"""The target's answers on disk: one JSON line each, with the token ids of prompt and answer as they were."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


def answer_files(data: Path) -> list[Path]:
    return sorted(data.glob("answers-*.jsonl"))


def read_answers(data: Path) -> list[Answer]:
    """Every answer long enough to learn from, in an order that does not hang on which rank wrote it."""
    found = [answer for path in answer_files(data) for answer in read_file(path)]
    return sorted((a for a in found if len(a.answer) >= SHORTEST), key=lambda a: (a.length, a.id, a.temperature))


def read_file(path: Path) -> Iterator[Answer]:
    """A torn last line, of a rank that was killed, is left out."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        row |= {"prompt": tuple(row["prompt"]), "answer": tuple(row["answer"])}
        yield Answer(**row)


def mend(path: Path) -> None:
    """Cut a torn last line off, so that what is appended stands on lines of its own."""
    if path.exists():
        whole = path.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]
        if kept != whole:
            path.write_bytes(kept)
