"""AdamW for everything, or Muon for the inner matrices with AdamW beside it for norms and output."""

from collections.abc import Iterable
from typing import Any

import torch

from draft_trainer.heads import Draft

DECAY, CLIPPED = 0.01, 1.0


class Optimiser:
    """One `step` and one state over all its parts."""

    def __init__(self, draft: Draft, kind: str) -> None:
        named = [(name, p) for name, p in draft.named_parameters() if p.requires_grad]
        self.parameters = [p for _, p in named]
        inner = [p for n, p in named if p.dim() == 2 and n not in draft.output_names] if kind == "muon" else []
        chosen = {id(p) for p in inner}
        rest = [p for p in self.parameters if id(p) not in chosen]
        groups = [
            {"params": [p for p in rest if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in rest if p.dim() == 1], "weight_decay": 0.0},
        ]
        self._parts: list[Any] = [torch.optim.AdamW([g for g in groups if g["params"]], betas=(0.9, 0.95))]
        if inner:
            # This adjustment makes an update as large as AdamW's, so that one rate serves both.
            muon = torch.optim.Muon(inner, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
            self._parts.append(muon)

    def step(self, rate: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIPPED)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()

    def forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> list[Any]:
        return [part.state_dict() for part in self._parts]

    def restore(self, states: Iterable[Any]) -> None:
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)
