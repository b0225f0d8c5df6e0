"""No field case of configuration (C), measuring (M), outcomes (S) or published tables (P) is left without a test of its
name: a function, or a pair of target and draft that preflight is tested on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

#: The cases that are kept, by what they guard; numbers that are missing were dropped when the cases were collected.
CASES = {
    "c01": "an EAGLE-3 head under EAGLE", "c03": "vocabularies that differ by padding",
    "c05": "the same size and other tokens", "c07": "layers the target lacks", "c08": "a draft of 2,048 positions",
    "c09": "a draft's tensor parallelism", "c11": "N against MTP modules", "c12": "more tokens than Medusa heads",
    "c13": "flags of another version", "c14": "topk 1 and a third knob", "c17": "48 requests once it speculates",
    "c18": "backends and trees", "c19": "structured output that hangs", "c21": "a speculator served as a model",
    "c22": "a vision-language target", "c23": "the draft's share of the cache", "c24": "a quantised target",
    "c26": "a drafter that never stops",
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
    tests = Path(__file__).parent
    functions = re.findall(r"def test_(\w+)\(", _text(tests.glob("test_*.py")))
    pairs = re.findall(r"- name: (C\d\d) ", _text((tests / "data" / "pairs").glob("*.yaml")))
    named = {case for name in functions for case in re.findall(r"(?<![a-z])[cmsp]\d\d(?!\d)", name)}
    assert set(CASES) - named - {name.lower() for name in pairs} == set()


def _text(paths: Iterable[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)
