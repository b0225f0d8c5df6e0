"""What vLLM would refuse late, or silently change: checked before a launch, each with what to do instead."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.engines.base import LaunchOptions
from tuner.errors import UserError
from tuner.spec.speculation import SpecConfig

#: vLLM overrides an explicit method when the draft's path, lower-cased, holds one of these (0.32).
MISLEADING_PATHS = ("eagle-", "eagle3", "dflash", "dspark")
#: Methods whose explicit name outweighs such a path, and those that read no draft.
_HOLD_THEIR_NAME = frozenset({"eagle", "eagle3", "dflash", "dspark", "ngram", "suffix"})
#: Flags that tuner sets itself, the same in every arm, with their short spellings and those of a speculative config.
OWN_FLAGS = frozenset(
    {
        "--model", "--host", "--port", "--served-model-name", "--api-key", "--max-num-seqs", "--seed",
        "--max-model-len", "--tensor-parallel-size", "-tp", "--enable-prefix-caching", "--no-enable-prefix-caching",
        "--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens", "--speculative-model",
        "--num-speculative-tokens", "--per-request-spec-decode-metrics", "--disable-log-stats",
    }
)  # fmt: skip
#: Methods that vLLM drafts one after the other with the target, never while the next step is scheduled.
_NO_ASYNC = frozenset({"ngram", "medusa", "suffix"})
#: Methods that draft a fixed N: they stop with an assertion where a schedule asks for another (0.32).
_NO_SCHEDULE = frozenset({"suffix", "medusa"})
SCHEDULE = "num_speculative_tokens_per_batch_size"


def check_args(args: Sequence[str]) -> None:
    """Refuse pass-through flags that would change what tuner itself decides, in any spelling vLLM takes."""
    for arg in (arg for arg in args if arg.startswith("-")):
        flag = arg.split("=")[0]
        if flag.split(".")[0].replace("_", "-") in OWN_FLAGS:
            raise UserError(f"engine_options.args has {flag}, which tuner sets itself: remove it")
        if flag == "--config":
            raise UserError("engine_options.args has --config, whose flags tuner cannot see: give the flags themselves")


def check_draft(target: str, spec: SpecConfig) -> None:
    """The draft's folder, and paths from which vLLM would take another method than the one asked for."""
    path = spec.draft or (target if spec.method == "mtp" else "")
    misleading = [text for text in MISLEADING_PATHS if text in path.lower()]
    if misleading and spec.method not in _HOLD_THEIR_NAME:
        what = f"{spec.method} draft" if spec.draft else "target, whose own layers draft,"
        raise UserError(
            f"the path of the {what} holds '{misleading[0]}', from which vLLM takes another method than {spec.method}: "
            f"move {path} to a folder without it"
        )
    if spec.draft and Path(spec.draft).is_dir() and not (Path(spec.draft) / "config.json").is_file():
        raise UserError(f"the draft folder {spec.draft} has no config.json: give the folder of a saved model")


def check_options(spec: SpecConfig, options: LaunchOptions) -> None:
    """Keys of the speculative config against the method and the rest of the launch."""
    chosen = dict(spec.options)
    draft_tp = chosen.get("draft_tensor_parallel_size")
    if draft_tp not in (None, 1, options.tensor_parallel):
        # One GPU is for heads: of draft models only the second model runner takes it (preflight/parallel.py).
        one = "" if spec.method == "draft_model" else "1 or "
        raise UserError(
            f"draft_tensor_parallel_size {draft_tp} does not go with tensor_parallel {options.tensor_parallel}: "
            f"use {one}{options.tensor_parallel}"
        )
    if spec.method in _NO_ASYNC and "--async-scheduling" in options.args:
        raise UserError(f"vLLM schedules nothing ahead with {spec.method} drafts: remove --async-scheduling")
    if SCHEDULE in chosen:
        if spec.method in _NO_SCHEDULE:
            raise UserError(f"vLLM stops when a schedule changes N of {spec.method}: remove {SCHEDULE}")
        check_schedule(chosen[SCHEDULE])


def check_schedule(text: Any) -> None:
    """N by the number of running requests, [[first, last, N], ...]. vLLM reads it after the weights are loaded only."""
    try:
        rows = [(first, last, n) for first, last, n in json.loads(str(text))]
    except (ValueError, TypeError):
        raise UserError(
            f"{SCHEDULE} is {text!r}: write rows [[first, last, N], ...], e.g. [[1, 8, 3], [9, 64, 0]]"
        ) from None
    if not rows or not all(isinstance(part, int) for row in rows for part in row):
        raise UserError(f"{SCHEDULE} needs at least one row of three whole numbers [first, last, N], got {text}")
    if rows[0][0] != 1:
        raise UserError(f"the first row of {SCHEDULE} starts at {rows[0][0]}: start it at 1 running request")
    before = 0
    for first, last, n in rows:
        if first <= before or last < first or n < 0:
            raise UserError(
                f"{SCHEDULE} has the row [{first}, {last}, {n}]: rows rise without overlap, first <= last, and N >= 0"
            )
        before = last


def token_count(text: str) -> int:
    """As vLLM reads it (human_readable_int, 0.32): 16k is 16,000, 16K is 16,384, 2.5k is 2,500. ValueError if not."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", text.strip())
    if found is None:
        return int(text)
    number, unit = found.groups()
    power = "kmgt".index(unit.lower()) + 1
    return int(float(number) * 1000**power) if unit.islower() else int(number) * 1024**power


def check_device(spec: SpecConfig, device: str) -> None:
    """What vLLM's CPU build, whose model runner is V1, cannot do or silently leaves out (0.32)."""
    if device != "cpu":
        return
    if spec.method == "dspark":
        raise UserError("vLLM on CPU has no dspark: its model runner V2 needs Triton; use another draft")
    sampling = dict(spec.options).get("rejection_sample_method")
    if sampling == "synthetic":
        raise UserError("vLLM on CPU dies at the first request with rejection_sample_method synthetic: remove it")
    if sampling == "block":
        raise UserError("vLLM on CPU takes rejection_sample_method block and samples as standard: remove it")
