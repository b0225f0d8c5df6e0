"""Trains a draft in an engine's environment: data once, training resumable, the result checked before it is kept."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tuner.engines
from tuner.engines.base import LaunchOptions
from tuner.engines.child import error_line, last_line, run_logged, termination_unwinds
from tuner.engines.environments import Environment
from tuner.engines.equipped import Work, equipped_environment
from tuner.engines.home import data_folder, locked, read_json, write_json
from tuner.engines.model_package import sha256_of
from tuner.engines.models import find_model
from tuner.engines.preflight.finding import Finding
from tuner.errors import EngineError, Interrupted, UserError
from tuner.run.checking import Typed, check_typed
from tuner.run.device_lock import holding_engines
from tuner.run.files import make_folder, write_atomic
from tuner.run.guarded import KEPT_LOCKS
from tuner.run.training_plan import (
    DRAFT_FILES,
    TargetShape,
    TrainingPlan,
    check_plan,
    data_settings,
    job_text,
    run_name,
    target_shape,
    training_settings,
)
from tuner.run.training_prompts import prompt_lines, training_prompts

SCRIPT = Path(tuner.engines.__file__).parent / "training_scripts" / "run.py"
#: vLLM serves all four kinds.
TRAINING = Work("training", "the training", ("torch", "transformers", "safetensors"), prefers="vllm")
#: The tokens that preflight asks a finished draft for.
CHECKED_N = 4
NATIVE_BF16 = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """Where the draft is, what training.json says, and what preflight warned of."""

    out: Path
    record: dict[str, Any]
    findings: tuple[Finding, ...]


def train_draft(plan: TrainingPlan, tell: Tell, run: Callable[..., int] = run_logged) -> Trained:
    """Make the data if it is not there, train, check, and put the files into plan.out.

    UserError before anything is started; EngineError with the trainer's own line; Interrupted says how to go on.
    """
    env = equipped_environment(plan.engine, TRAINING)
    target = find_model(plan.target)
    shape = target_shape(target)
    check_plan(plan, shape, env)
    plan = replace(plan, precision=native_precision()) if plan.precision == "auto" else plan
    _check_out(plan)
    folder = (plan.folder or data_folder() / "training" / shape.name).expanduser().absolute()
    make_folder(folder)
    training = Training(plan, env, target, shape, folder, tell, run)
    held = holding_engines([(env, LaunchOptions(1))], f"tuner draft train {plan.method}")
    waiting = locked(folder / ".lock", lambda: tell(f"waiting: another tuner works in {folder}"))
    with termination_unwinds(), held, waiting:
        try:
            return training.make()
        except KeyboardInterrupt:
            raise Interrupted("training was interrupted; the same command with --resume goes on from there") from None


def native_precision() -> str:
    """By the flags that Linux tells of this CPU, x86 or Arm."""
    with contextlib.suppress(OSError):
        if NATIVE_BF16 & set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split()):
            return "bf16"
    return "float32"


def _check_out(plan: TrainingPlan) -> None:
    there = [name for name in DRAFT_FILES if os.path.exists(plan.out / name)]
    if there and not (plan.replace or plan.resume):
        raise UserError(f"{plan.out} holds {there[-1]} already: name another folder, or give --replace")
    if os.path.exists(plan.out) and not os.path.isdir(plan.out):
        raise UserError(f"{plan.out} is not a folder: name another one with --out")


@dataclass(frozen=True, slots=True)
class Training:
    """One draft in the making. `folder`: data, shared by all drafts of a target; `run` starts a child."""

    plan: TrainingPlan
    env: Environment
    target: str
    shape: TargetShape
    folder: Path
    tell: Tell
    run: Callable[..., int]

    @property
    def work(self) -> Path:
        return self.folder / "runs" / run_name(self.plan)

    def make(self) -> Trained:
        settings = json.loads(json.dumps(training_settings(self.plan, self.shape, self._settled_data())))
        checkpoint = self.work / "checkpoint.pt"
        if (finished := self._finished(settings)) is not None:
            return finished
        if checkpoint.exists() and not self.plan.resume:
            raise UserError(f"a run towards {self.plan.out} was begun: add --resume, or delete {self.work}")
        make_folder(self.work)
        job = self.work / "job.json"
        write_atomic(job, job_text(self.plan, settings, self.target, self.folder, self.work, self.env))
        self._respond(job)
        self._stage("train", job, f"a draft for {self.plan.method} learns from them")
        findings = self._checked(self.work / "draft")
        out = self._kept(self.work / "draft")
        checkpoint.unlink(missing_ok=True)
        return Trained(out, read_json(out / "training.json", "train again"), findings)

    def _finished(self, settings: dict[str, Any]) -> Trained | None:
        """The draft that `--resume` finds done. UserError where OUT holds another that may not be replaced."""
        record, weights = self.plan.out / "training.json", self.plan.out / "model.safetensors"
        if not self.plan.resume or not weights.is_file():
            return None
        there = read_json(record, "give --replace") if record.is_file() else {}
        if there.get("settings") == settings and there.get("sha256") == {weights.name: sha256_of(weights)}:
            self.tell(f"finished already, in {self.plan.out}")
            return Trained(self.plan.out, there, self._checked(self.plan.out))
        if not self.plan.replace:
            raise UserError(f"{self.plan.out} holds another draft: name another folder, or give --replace")
        return None

    def _settled_data(self) -> dict[str, Any]:
        """Prompts written down at the first run; UserError where the folder was made with other settings."""
        data = self.plan.data
        prompts = training_prompts(data.prompts, data.held_out, data.written, data.seed)
        if prompts.dropped:
            self.tell(f"{prompts.dropped} prompts are left out of training: held out, or there twice")
        facts = {
            "sources": [asdict(source) for source in prompts.sources],
            "held_sources": [asdict(source) for source in prompts.held_sources],
            "held_hashes": list(prompts.held_hashes),
            "target_sha256": {path.name: sha256_of(path) for path in sorted(Path(self.target).glob("*.safetensors"))},
        }
        settings: dict[str, Any] = json.loads(json.dumps(data_settings(self.plan, self.shape, self.env, facts)))
        noted = self.folder / "data.json"
        if noted.exists():
            there = read_json(noted, f"delete {self.folder}")
            changed = [key for key in settings if there.get(key) != settings[key]]
            if changed:
                raise UserError(
                    f"{self.folder} holds data of other settings ({', '.join(changed)}): name another with --data"
                )
        else:
            write_atomic(self.folder / "prompts.jsonl", prompt_lines(prompts))
            write_json(noted, settings)
        return settings

    def _respond(self, job: Path) -> None:
        done = self.folder / "respond.done"
        if done.exists():
            self.tell(f"respond: there already, in {self.folder}")
            return
        self._stage("respond", job, "the target answers prompts")
        done.touch()

    def _stage(self, stage: str, job: Path, doing: str) -> None:
        log = self.work / "log.txt"
        self.tell(f"{stage}: {doing} (log: {log})")
        argv = [str(self.env.python), "-I", str(SCRIPT), stage, str(job)]
        quiet = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}

        def waiting() -> None:
            self.tell(f"  … {last_line(log)[:140]}")

        if self.run(argv, log, extra_env=quiet, inherit=sorted(KEPT_LOCKS), waiting=waiting) != 0:
            raise EngineError(f"{stage} failed: {error_line(log)} (full log: {log})")

    def _checked(self, draft: Path) -> tuple[Finding, ...]:
        """What `tuner check` says of it on this very engine."""
        n = min(CHECKED_N, self.plan.heads) if self.plan.method == "medusa" else CHECKED_N
        found = check_typed(Typed(self.target, self.plan.method, self.env.name, str(draft), n=n))
        if not found.ok:
            errors = "; ".join(finding.message for finding in found.findings if finding.is_error)
            raise EngineError(f"the trained draft in {draft} does not fit its target: {errors}")
        return found.findings

    def _kept(self, draft: Path) -> Path:
        """Each file appears whole, the weights last; what else lies in the folder is left alone."""
        out = self.plan.out.expanduser()
        make_folder(out)
        for name in DRAFT_FILES:
            if (draft / name).is_file():
                with _beside(out / name) as partial:
                    shutil.copyfile(draft / name, partial)
        return out


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    from tuner.run.files import writing

    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        yield partial
        partial.replace(path)
