"""What a draft is trained for, from which data and how long: as typed, checked against the target, as a job file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tuner.engines.checkpoint import read_config
from tuner.engines.environments import Environment
from tuner.errors import UserError

METHODS = ("eagle3", "eagle", "medusa", "draft_model")
#: Peak learning rates. EAGLE-3's made the first head; the others' are starting points that were not searched.
RATES = MappingProxyType({"eagle3": 8e-4, "eagle": 8e-4, "medusa": 1e-3, "draft_model": 1.5e-3})
#: auto: bf16 where the CPU multiplies it natively; elsewhere it is many times slower than float32.
PRECISIONS = ("auto", "bf16", "float32")
#: Prompts that a rank answers at once.
BATCH = 128
#: At most so much work is lost when a run is killed.
CHECKPOINT_S = 120.0
#: Files of a finished draft, the one that engines take it by at the end.
DRAFT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "training.json", "config.json",
               "model.safetensors")  # fmt: skip
_FAMILY = "LlamaForCausalLM"


@dataclass(frozen=True, slots=True)
class DataPlan:
    """Answers of the target to learn from. `prompts`: sets, files, `written`. `temperatures`: one is an answer's, each
    as often as it is listed. `minutes`: most that answering may take."""

    prompts: tuple[str, ...] = ("written",)
    held_out: tuple[str, ...] = ("chat", "maths", "code")
    written: int = 3000
    own_questions: int = 1000
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)
    answer_tokens: int = 128
    prompt_tokens: int = 384
    minutes: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """One draft. Fields that belong to other methods are left at what they are. `taps`: () for what engines take."""

    target: str
    method: str
    out: Path
    data: DataPlan = field(default_factory=DataPlan)
    folder: Path | None = None
    engine: str | None = None
    steps: int | None = None
    minutes: float | None = None
    seed: int = 0
    ranks: int = 1
    precision: str = "auto"
    ttt: int = 4
    rows: int = 1024
    rate: float | None = None
    loss_tokens: int = 2048
    share: float = 0.5
    decay: float = 0.8
    sharpness: float = 1.0
    vocabulary: int = 8192
    feature_norm: bool = False
    taps: tuple[int, ...] = ()
    intermediate: int = 0
    heads: int = 4
    layers: int = 4
    hidden: int = 0
    resume: bool = False
    replace: bool = False


@dataclass(frozen=True, slots=True)
class TargetShape:
    name: str
    hidden: int
    layers: int
    vocabulary: int


def target_shape(folder: str) -> TargetShape:
    """UserError for what cannot be trained for: a model that is not here, or not of the Llama family."""
    if not Path(folder).is_dir():
        raise UserError(f"{folder} is not a folder: training reads the target's weights, so download it first")
    config = read_config(Path(folder), folder)
    if config.get("architectures") != [_FAMILY]:
        raise UserError(f"{folder} is {config.get('architectures')}, and drafts are trained for {_FAMILY} alone")
    try:
        sizes = [int(config[key]) for key in ("hidden_size", "num_hidden_layers", "vocab_size")]
    except (KeyError, TypeError, ValueError) as missing:
        raise UserError(f"config.json of {folder} has no usable {missing}: save the model again") from None
    return TargetShape(Path(folder).name, *sizes)


def check_plan(plan: TrainingPlan, target: TargetShape, env: Environment) -> None:
    """UserError on the first setting that cannot work."""
    if plan.method not in METHODS:
        raise UserError(f"no draft is trained for the method {plan.method!r} (there are {', '.join(METHODS)})")
    if plan.method == "medusa" and env.engine == "sglang":
        raise UserError("SGLang serves no Medusa heads: train another draft, or name a vLLM with --engine")
    if plan.precision not in PRECISIONS:
        raise UserError(f"--precision is one of {', '.join(PRECISIONS)}, not {plan.precision!r}")
    if plan.steps is None and plan.minutes is None:
        raise UserError("say how long to train: --minutes, or --steps")
    if plan.minutes is not None and plan.minutes <= 0:
        raise UserError(f"--minutes {plan.minutes:g} trains nothing: give more than 0")
    if plan.vocabulary > target.vocabulary:
        raise UserError(f"--draft-vocab {plan.vocabulary} is more than the target's {target.vocabulary} tokens")
    taps = plan.taps or usual_taps(target)
    if list(taps) != sorted(set(taps)) or taps[0] < 0 or taps[-1] >= target.layers:
        raise UserError(f"--taps {','.join(map(str, taps))} must ascend from 0 to {target.layers - 1}, the last layer")
    if plan.method == "draft_model" and (plan.hidden > target.hidden or plan.layers > target.layers):
        raise UserError(f"a draft model of {plan.layers} layers, {plan.hidden} wide, is larger than its target")
    if not plan.data.temperatures:
        raise UserError("--temperatures needs a value, such as 0,0.7")


def usual_taps(target: TargetShape) -> tuple[int, ...]:
    return 2, target.layers // 2, target.layers - 3


def data_settings(plan: TrainingPlan, target: TargetShape, env: Environment, facts: dict[str, Any]) -> dict[str, Any]:
    """All that decides what is in the data folder; `facts`: of the prompts and of the target's files."""
    made = asdict(plan.data) | {"prompts": list(map(_shown, plan.data.prompts))}
    made |= {"held_out": list(map(_shown, plan.data.held_out)), "temperatures": list(plan.data.temperatures)}
    return (
        made
        | {
            "target": target.name,
            "taps": list(plan.taps or usual_taps(target)),
            "precision": plan.precision,
            "ranks": plan.ranks,
            "engine": f"{env.engine} {env.version}",
        }
        | facts
    )


def training_settings(plan: TrainingPlan, target: TargetShape, data: dict[str, Any]) -> dict[str, Any]:
    """What a run is, paths left out: two runs with equal settings make the same draft, within noise."""
    own = {
        key: value
        for key, value in asdict(plan).items()
        if key not in ("target", "out", "data", "folder", "engine", "resume", "replace", "taps")
    }
    rate = plan.rate if plan.rate is not None else RATES[plan.method]
    return own | {"rate": rate, "hidden": plan.hidden or target.hidden, "target": target.name, "data": data}


def job_text(
    plan: TrainingPlan, settings: dict[str, Any], target: str, folder: Path, work: Path, env: Environment
) -> str:
    """The job file that the trainer reads in the engine's environment."""
    data = settings["data"]
    job = {key: value for key, value in settings.items() if key not in ("target", "data")}
    job |= {key: data[key] for key in ("taps", "temperatures", "answer_tokens", "prompt_tokens", "own_questions")}
    job |= {"target": target, "data": str(folder), "work": str(work), "prompts": str(folder / "prompts.jsonl")}
    job |= {
        "engine": env.engine,
        "data_seed": data["seed"],
        "data_minutes": plan.data.minutes,
        "batch": BATCH,
        "checkpoint_s": CHECKPOINT_S,
        "resume": plan.resume,
    }
    return json.dumps(job | {"settings": settings}, indent=1)


def run_name(plan: TrainingPlan) -> str:
    """One folder for all runs towards one OUT; its name says neither method nor path, which engines read meaning in."""
    return hashlib.sha256(str(plan.out.expanduser().absolute()).encode()).hexdigest()[:12]


def _shown(name: str) -> str:
    return Path(name).name
