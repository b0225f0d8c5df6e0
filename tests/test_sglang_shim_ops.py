"""Every CPU kernel that stands in for SGLang's, against plain PyTorch in SGLang's environment (sglang_kernels.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import real_sglang

pytestmark = pytest.mark.real_sglang

KERNELS = Path(__file__).parents[1] / "tuner" / "engines" / "sglang_cpu" / "packages" / "sgl_kernel"
#: Checks of one kernel under other arguments, and of what is refused.
FURTHER = {"rotary_embedding_partial", "extend_attention_tree", "attention_variants", "missing_kernels"}
#: Functions that no caller of SGLang's names.
INNER = {"attend", "refuse_variants", "parents", "link"}


def kernels() -> list[str]:
    """Every function that the modules define, by name."""
    defined = [re.findall(r"^def (\w+)", path.read_text(encoding="utf-8"), re.M) for path in KERNELS.glob("*.py")]
    named = {name for names in defined for name in names if not name.startswith("_")} - INNER
    return sorted(named - {"reconstruct_indices_from_tree_mask"} | {"reconstruct_indices"})


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    answers: dict[str, str] = json.loads(real_sglang.run_in_environment("sglang_kernels.py").splitlines()[-1])
    return answers


@pytest.mark.parametrize("kernel", [*kernels(), *sorted(FURTHER)])
def test_kernel(found: dict[str, str], kernel: str) -> None:
    assert found[kernel] == ""


def test_every_check_is_asked_for(found: dict[str, str]) -> None:
    assert set(found) == set(kernels()) | FURTHER
