"""The skill file keeps to the Agent Skill format, and says what the study found, also where that is `off`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import yaml
from study_fixture import EAGLE2, WORKLOAD, Truth, study_evidence, study_report, study_trials

from tuner.decide.evidence import gather
from tuner.report.data import ReportInput
from tuner.report.skill import front_matter, skill
from tuner.spec.speculation import OFF
from tuner.spec.workload import Workload

SECTIONS = [
    "When to use",
    "When not",
    "The measured strategy",
    "How sure",
    "What would change the advice",
    "How to re-measure",
]
#: The fields and limits of the Agent Skills specification (agentskills.io).
FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}


@pytest.fixture(scope="module")
def mixed() -> ReportInput:
    return study_report(study_evidence())


def parts(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """(front matter, sections by heading)."""
    found = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL)
    assert found is not None
    sections = re.split(r"^## (.*)\n", found.group(2), flags=re.MULTILINE)
    return yaml.safe_load(found.group(1)), dict(zip(sections[1::2], sections[2::2], strict=True))


def check_format(fields: dict[str, Any]) -> None:
    assert set(fields) <= FIELDS
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert len(fields["name"]) <= 64
    assert 1 <= len(fields["description"]) <= 1024
    assert not re.search(r"[<>]", fields["description"])
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in fields["metadata"].items())


def test_front_matter_keeps_to_the_format(mixed: ReportInput) -> None:
    fields, sections = parts(skill(mixed))
    check_format(fields)
    assert fields["name"] == "eagle3-tuner"
    assert "Use when" in fields["description"]
    assert "Use eagle3 N=2 at concurrency 1 and 4; leave speculation off at concurrency 8." in fields["description"]
    assert fields["metadata"]["study"] == mixed.header.id
    assert list(sections) == SECTIONS


def test_the_strategy_names_draft_n_switches_command_and_break_even(mixed: ReportInput) -> None:
    _, sections = parts(skill(mixed))
    strategy = sections["The measured strategy"]
    assert "draft type eagle3, a chain of N = 2 tokens per verify step, draft /models/smollm2-135m/eagle3" in strategy
    assert strategy.count("**eagle3 N=2**") == 4
    assert strategy.count("**leave off**") == 2
    command = strategy.split("```bash\n")[1].split("```")[0]
    assert command.replace(" \\\n ", "").split()[:3] == list(mixed.deploy[EAGLE2][:3])
    assert '"num_speculative_tokens": 2' in command
    assert re.search(r"\| 1\.\d{2} \[[\d., ]+\], n = 24 \| 0\.\d{3} \[", strategy)  # measured tau, break-even alpha
    told = strategy.split("Break-even:")[1]
    for setting in ("ngram N=4", "eagle3 N=5", "eagle3 N=2"):  # every setting with what requests gained
        assert len(re.findall(rf"\| {setting} \|.*\| \d\.\d\dx \[", told)) == 6


def test_when_not_and_what_would_change(mixed: ReportInput) -> None:
    _, sections = parts(skill(mixed))
    assert "Leave it off at concurrency 8: every setting is slower" in sections["When not"]
    assert "not verified in this study" in sections["When not"]
    assert "not verified in this study" in sections["How sure"]
    assert "drift" in sections["How sure"]
    changes = sections["What would change the advice"]
    assert re.search(r"concurrency 1, temperature 0: eagle3 N=2 stops paying below tau 1\.\d\d \[", changes)
    assert re.search(r"concurrency 8, temperature 0: eagle3 N=2 begins to pay above tau 1\.\d\d \[", changes)
    turns = sections["The measured strategy"]
    pattern = r"at temperature 1 eagle3 N=2 stops paying at about (\d\.\d) requests in flight \[(\d\.\d), (\d\.\d)\]"
    found = re.search(pattern, turns)
    assert found, turns
    low, value, high = (float(found[i]) for i in (2, 1, 3))
    assert 4 <= low < value < high <= 8
    assert "by interpolation between concurrency 4 and 8" in turns


def test_the_workload_to_measure_again_is_whole(mixed: ReportInput) -> None:
    _, sections = parts(skill(mixed))
    block = sections["How to re-measure"].split("```yaml\n")[1].split("```")[0]
    assert Workload.model_validate(yaml.safe_load(block)) == mixed.workload


def test_verified_output_is_said_to_be_verified(mixed: ReportInput) -> None:
    told = skill(dataclasses.replace(mixed, losslessness="next-token distributions agree (chi2 p = 0.4)"))
    assert "Output still the target's: next-token distributions agree (chi2 p = 0.4)." in told
    assert "not verified" not in told


def test_off_is_advice_too() -> None:
    data = study_report(study_evidence(Truth(slope=8, failed=False)))
    fields, sections = parts(skill(data))
    check_format(fields)
    assert fields["metadata"]["verdict"] == "off"
    assert "Leave speculative decoding off" in fields["description"]
    strategy = sections["The measured strategy"]
    assert "Serve without speculation: the plain command below." in strategy
    assert "--speculative-config" not in strategy
    assert " ".join(data.deploy[OFF][:3]) in strategy
    assert "begins to pay above" in sections["What would change the advice"]
    assert sections["When not"].startswith(
        "\n- Do not turn speculation on at concurrency 1, 4 and 8 (temperature 0 and 1): the table below says why.\n"
    )
    assert "what this advice applies to: concurrency 1, 4 and 8; temperature 0 and 1" in sections["When to use"]
    assert (
        "4. Only on a server that speculates (the command above does not): `tuner acceptance"
        in sections["How to re-measure"]
    )


def test_a_long_or_odd_model_name_keeps_the_format() -> None:
    evidence = gather(study_trials(Truth(measured=2, concurrency=(1,), temperatures=(0.0,)))[:1], "tpot_p50")
    data = study_report(evidence, WORKLOAD | {"model": "org/<b>name</b>: 'x' " + "y" * 2000})
    fields = yaml.safe_load(front_matter(data))
    check_format(fields)
    assert fields["description"].endswith("...")
