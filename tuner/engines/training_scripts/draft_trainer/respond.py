"""Stage `respond`: the target answers every prompt, and asks itself some questions first. Resumable by answer."""

import json
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draft_trainer.answering import AnsweringTarget
from draft_trainer.answers import Answer, AnswerFile
from draft_trainer.job import Job
from draft_trainer.processes import minutes_left, say
from draft_trainer.prompt_hash import prompt_hash

#: Where the target's own questions are counted, and how long and at which temperature it asks.
OWN, QUESTION_TOKENS, QUESTION_TEMPERATURE = "own", 96, 1.0
#: Batches whose prompts are sorted by length together.
SORTED_TOGETHER = 4
_MARK = "\u2402question\u2403"


@dataclass(frozen=True)
class Asked:
    """One answer to be made."""

    id: str
    source: str
    held: bool
    temperature: float
    prompt: tuple[int, ...]


def respond(job: Job, rank: int) -> None:
    from transformers import AutoTokenizer

    data = Path(job.data)
    model, tokenizer = AnsweringTarget(job, rank), AutoTokenizer.from_pretrained(job.target)
    file = AnswerFile(data, rank, model.width)
    there = {(answer.id, answer.temperature) for answer in file.mend()}
    rows = [json.loads(line) for line in Path(job.prompts).read_text(encoding="utf-8").split("\n") if line]
    mine = rows[rank :: job.ranks]
    mine += _own_questions(job, rank, model, tokenizer, data / f"questions-{rank}.jsonl", {row["hash"] for row in rows})
    wanted = list(_asked(job, mine, tokenizer))
    left = [one for one in wanted if (one.id, one.temperature) not in there]
    _answer_all(job, rank, model, left, file)


def _template(tokenizer: Any, messages: Sequence[dict[str, str]]) -> str:
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _asked(job: Job, rows: Iterable[dict[str, Any]], tokenizer: Any) -> Iterable[Asked]:
    """Held-out prompts first and greedily; others at one temperature each, which the prompt's own hash chooses."""
    ready = []
    for row in rows:
        messages = [{"role": role, "content": text} for role, text in row["messages"]]
        prompt = _ids(tokenizer, _template(tokenizer, messages))
        if len(prompt) <= job.prompt_tokens:
            chosen = job.temperatures[int(row["hash"][:8], 16) % len(job.temperatures)]
            ready.append(Asked(row["id"], row["set"], row["held"], 0.0 if row["held"] else chosen, prompt))
    random.Random(f"{job.data_seed}/order").shuffle(ready)
    return sorted(ready, key=lambda one: not one.held)


def _own_questions(
    job: Job, rank: int, model: AnsweringTarget, tokenizer: Any, path: Path, known: set[str]
) -> list[dict[str, Any]]:
    """Questions that the target writes where a user's turn would stand; none that is held out or was asked before."""
    if not path.exists():
        opening = _template(tokenizer, [{"role": "user", "content": _MARK}]).partition(_MARK)[0]
        count = job.own_questions // job.ranks
        texts: list[str] = []
        prompt = _ids(tokenizer, opening)
        for start in range(0, count, job.batch):
            size = min(job.batch, count - start)
            drawn = model.complete([prompt] * size, [QUESTION_TEMPERATURE] * size, QUESTION_TOKENS)
            # One that did not end is half a question.
            texts += [tokenizer.decode(one.ids, skip_special_tokens=True).strip() for one in drawn if one.ended]
            say(f"own questions {start + size}/{count}")
        path.write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
    texts = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    rows = []
    for number, text in enumerate(texts):
        digest = prompt_hash([("user", text)])
        if text and digest not in known:
            known.add(digest)
            name = f"{OWN}/{rank}-{number}"
            rows.append({"id": name, "set": OWN, "held": False, "hash": digest, "messages": [("user", text)]})
    return rows


def _answer_all(job: Job, rank: int, model: AnsweringTarget, left: Sequence[Asked], file: AnswerFile) -> None:
    began_s, tokens, done = time.monotonic(), 0, 0
    for batch in _batches(left, job.batch):
        spent_s = time.monotonic() - began_s
        if job.data_minutes is not None and spent_s > 60 * job.data_minutes:
            break
        drawn = model.complete([one.prompt for one in batch], [one.temperature for one in batch], job.answer_tokens)
        made = [Answer(**asdict(one), answer=tuple(found.ids)) for one, found in zip(batch, drawn, strict=True)]
        file.append(made, [found.states for found in drawn])
        tokens += sum(len(one.answer) for one in made)
        done += len(batch)
        spent_s, share = time.monotonic() - began_s, done / len(left)
        if rank == 0:
            pace = f"{tokens / spent_s:.0f} tokens/s a rank"
            say(f"answers {done}/{len(left)}, {pace}{minutes_left(spent_s * (1 - share) / share)}")


def _batches(left: Sequence[Asked], size: int) -> Iterator[Sequence[Asked]]:
    """Neighbours of similar length, so that little is padding; wherever answering ends, what is done is a fair draw."""
    held = [one for one in left if one.held]
    others = left[len(held) :]
    for start in range(0, len(others) or 1, SORTED_TOGETHER * size):
        part = [*(held if not start else ()), *others[start : start + SORTED_TOGETHER * size]]
        part.sort(key=lambda one: (not one.held, len(one.prompt)))
        for first in range(0, len(part), size):
            yield part[first : first + size]
