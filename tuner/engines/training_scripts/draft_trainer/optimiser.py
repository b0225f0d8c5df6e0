"""AdamW: no weight decay on norms, gradients clipped, one state that a checkpoint keeps."""

from typing import Any

import torch

from draft_trainer.heads import Draft

DECAY, CLIPPED, BETAS = 0.01, 1.0, (0.9, 0.95)


class Optimiser:
    def __init__(self, draft: Draft) -> None:
        self.parameters = [parameter for parameter in draft.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in self.parameters if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in self.parameters if p.dim() == 1], "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW([group for group in groups if group["params"]], betas=BETAS, fused=True)

    def step(self, rate: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIPPED)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()

    def forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> dict[str, Any]:
        return self._adam.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        self._adam.load_state_dict(state)
