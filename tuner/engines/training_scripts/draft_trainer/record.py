"""`training.json`: what a draft was made from, how, and what it does on prompts that were kept out."""

import importlib.metadata
import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from draft_trainer.answers import read_answers
from draft_trainer.corpus import Corpus
from draft_trainer.heads import Draft
from draft_trainer.job import Job
from draft_trainer.loop import Run, Trainer
from draft_trainer.target import sha256_of
from draft_trainer.vocabulary import coverage

#: Losses are kept as so many means over the run.
POINTS = 100


def training_record(trainer: Trainer, held: Corpus, held_out: dict[str, Any]) -> dict[str, Any]:
    job, run = trainer.job, trainer.run
    return {
        "method": job.method,
        "target": target_facts(job),
        "settings": job.settings,
        "data": data_facts(job),
        "vocabulary": vocabulary_facts(trainer.draft, held),
        "parameters": sum(p.numel() for p in trainer.draft.parameters()),
        "steps": run.step,
        "rows": round(run.rows),
        "minutes": round(run.spent_s / 60, 2),
        "resumed": run.resumed,
        "losses": means(run),
        "alike_in_training": run.hits[:: max(1, len(run.hits) // POINTS)],
        "held_out": {"without_engine": held_out, "in_engine": None},
        "versions": versions(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def means(run: Run) -> list[tuple[int, float]]:
    """(last step of a stretch, mean loss over it)."""
    each = max(1, -(-len(run.losses) // POINTS))
    parts = [run.losses[start : start + each] for start in range(0, len(run.losses), each)]
    return [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in parts]


def target_facts(job: Job) -> dict[str, Any]:
    folder = Path(job.target)
    hashed = [*sorted(folder.glob("*.safetensors")), folder / "config.json", folder / "tokenizer.json"]
    return {"name": folder.name, "sha256": {path.name: sha256_of(path) for path in hashed if path.is_file()}}


def data_facts(job: Job) -> dict[str, Any]:
    """Answers and tokens by set and use, and the sum of the file of prompts that they are answers to."""
    facts: dict[str, Any] = {"prompts_sha256": sha256_of(Path(job.prompts)), "training": {}, "held_out": {}}
    for answer in read_answers(Path(job.data)):
        kinds = facts["held_out" if answer.held else "training"]
        entry = kinds.setdefault(answer.source, {"answers": 0, "answer_tokens": 0, "temperatures": {}})
        entry["answers"] += 1
        entry["answer_tokens"] += len(answer.answer)
        heat = f"{answer.temperature:g}"
        entry["temperatures"][heat] = entry["temperatures"].get(heat, 0) + 1
    return facts


def vocabulary_facts(draft: Draft, held: Corpus) -> dict[str, Any]:
    """How many tokens can be drafted, and which share of the held-out answers they are; a draft model drafts all."""
    if draft.job.method in ("draft_model", "eagle"):
        return {"tokens": draft.target.vocabulary, "coverage": 1.0}
    kept = draft.vocabulary.ids  # type: ignore[attr-defined]
    return {"tokens": len(kept), "coverage": coverage(held.counts(draft.target.vocabulary)[0], kept)}


def versions() -> dict[str, str]:
    libraries = {name: importlib.metadata.version(name) for name in ("transformers", "safetensors")}
    return {"python": platform.python_version(), "torch": torch.__version__} | libraries


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """With the sum of the weights that lie beside it."""
    record["sha256"] = {"model.safetensors": sha256_of(folder / "model.safetensors")}
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
