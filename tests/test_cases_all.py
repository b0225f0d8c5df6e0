"""No field case of measuring (M), of outcomes (S) or of published tables (P) is left without a test of its name."""

from __future__ import annotations

import re
from pathlib import Path

#: The cases that are kept, by what they guard; numbers that are missing were dropped when the cases were collected.
CASES = {
    "m01": "inter-token latency that counts chunks", "m03": "counters that go on from the last run",
    "m04": "with or without the bonus token", "m05": "SGLang's logged accept rate", "m06": "marginal and conditional",
    "m09": "high acceptance, no speed", "m11": "random tokens and forced length", "m13": "a warm prefix cache",
    "m14": "the client's queue left out", "m16": "measured greedy, served sampled", "m17": "heads and paths mixed",
    "m18": "chunks counted as tokens", "m20": "buffered tool-call output", "m22": "raw prompts, no chat template",
    "m23": "differences inside the noise",
    "s01": "a language the drafter never saw", "s03": "thinking off", "s05": "a draft nearly as big as the active part",
    "s07": "small target, tiny drafter", "s08": "more GPUs, no gain", "s09": "first token slower",
    "s11": "acceptance length of one", "s12": "everything accepted", "s13": "dies only under load",
    "s14": "better TPOT, lumpier stream",
    "p01": "vllm#20780", "p02": "vllm#24243", "p04": "sglang#22246", "p06": "spark-vllm#343", "p07": "vllm#48892",
    "p09": "strix-halo#53 and AngelSlim",
}  # fmt: skip


def test_every_case_has_a_test_named_after_it() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    named = {
        case for name in re.findall(r"def test_(\w+)\(", text) for case in re.findall(r"(?<![a-z])[msp]\d\d", name)
    }
    assert set(CASES) - named == set()
