"""Commands that train a better draft on the user's own traffic: tools of other projects, and tuner's own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

from tuner.report.data import ReportInput
from tuner.report.draft_needs import DraftNeed
from tuner.report.draft_text import trained
from tuner.report.trainers import TRAINERS, Trainer

#: Tokens of a training sample where the workload names no limit: what SpecForge's EAGLE-3 recipes take.
SAMPLE_TOKENS = 4096
#: The least that `tuner draft train` takes.
SHORTEST_ANSWER = 8
#: Characters of a command that stays on one line.
LONGEST = 100
#: The highest temperature SpecForge's script takes.
HIGHEST_TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """One tool with its commands, filled in for this study's target and traffic."""

    trainer: Trainer
    commands: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.trainer.name} {self.trainer.version}, {self.trainer.whose}"

    @property
    def block(self) -> str:
        """For a shell, one flag a line."""
        return "\n".join(_wrapped(line) for line in self.commands)


def recipes(data: ReportInput, needs: Sequence[DraftNeed]) -> tuple[Recipe, ...]:
    """The measured engine's own tool first, tuner's before it where a CPU was measured; empty unless a trained draft
    falls short of what a better one could do."""
    if not trained(needs):
        return ()
    measured, values = data.environment, _values(data)
    first: list[str | None] = [None] if measured and measured.device == "cpu" else []
    first += [measured.engine] if measured else []
    ordered = sorted(TRAINERS, key=lambda one: first.index(one.engine) if one.engine in first else len(first))
    return tuple(Recipe(one, tuple(Template(line).safe_substitute(values) for line in one.lines)) for one in ordered)


def kind_sentence(needs: Sequence[DraftNeed]) -> str:
    """What is trained, where another kind of draft was measured."""
    others = dict.fromkeys(spec.way for spec in trained(needs) if spec.method != "eagle3")
    if not others:
        return ""
    return f"They train an EAGLE-3 head, another kind of draft than {', '.join(others)}: its steps cost differently. "


def _values(data: ReportInput) -> Mapping[str, str]:
    workload = data.workload
    target = data.target or workload.model
    temperatures = workload.sampling.temperatures
    shares = {f"{t:g}": 1 / len(temperatures) for t in temperatures}
    return {
        "target": shlex.quote(target),
        "target_yaml": _in_heredoc(json.dumps(target)),
        "max_tokens": str(workload.traffic.max_output_tokens),
        "answer_tokens": str(max(SHORTEST_ANSWER, workload.traffic.max_output_tokens)),
        "temperatures": shlex.quote(json.dumps(shares)),
        "temperature_list": ",".join(shares),
        "temperature": f"{min(HIGHEST_TEMPERATURE, max(temperatures)):g}",
        "sample_tokens": str(workload.engine_options.max_model_len or SAMPLE_TOKENS),
    }


def _in_heredoc(text: str) -> str:
    """What a shell expands in an unquoted here-document is kept from it."""
    return "".join(f"\\{letter}" if letter in "\\$`" else letter for letter in text)


def _wrapped(line: str) -> str:
    """A file that is written in place, a comment and what is short stay as they are."""
    if line.startswith("#") or "\n" in line or len(line) <= LONGEST:
        return line
    return line.replace(" --", " \\\n  --")
