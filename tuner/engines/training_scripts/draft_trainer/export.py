"""Writes a draft as engines load it: config.json, model.safetensors, and the target's tokenizer for a draft model."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draft_trainer.heads import Draft

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def export(draft: Draft, folder: Path) -> None:
    """bf16 weights; integers and truth values as they are. Weights last: a folder without them is not finished."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", draft.config())
    if draft.job.method == "draft_model":
        for name in TOKENIZER:
            if (draft.target.folder / name).is_file():
                shutil.copyfile(draft.target.folder / name, folder / name)
    partial = folder / "model.safetensors.partial"
    save_file({name: _stored(value) for name, value in draft.tensors().items()}, str(partial), {"format": "pt"})
    partial.replace(folder / "model.safetensors")


def _stored(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous().clone()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
