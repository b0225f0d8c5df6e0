"""The scheduling recipes as shipped, held against the parsers of what they are for."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tuner.cli import app

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "sweeps" / "recipes"
#: Minute, hour, day, month, weekday: bounds of crontab(5).
CRON_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def options_of(command: str) -> set[str]:
    import typer.main

    made = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {name for parameter in made.params for name in (*parameter.opts, *parameter.secondary_opts)}


def check_command(words: list[str]) -> None:
    """`tuner sweep FILE OPTIONS` as this version of the command has it."""
    start = next(i for i, word in enumerate(words) if word.rpartition("/")[2] == "tuner")
    assert words[start + 1] == "sweep"
    assert {word for word in words[start + 2 :] if word.startswith("--")} <= options_of("sweep")
    assert "--resume" in words
    named = words[start + 2]
    assert named.startswith("/config/") or (ROOT / named).is_file()


def check_schedule(text: str) -> None:
    fields = text.split()
    assert len(fields) == 5
    for field, (low, high) in zip(fields, CRON_FIELDS, strict=True):
        for part in field.split(","):
            numbers = re.fullmatch(r"(\*|\d+(?:-\d+)?)(?:/\d+)?", part)
            assert numbers, f"{part} is no field of a crontab"
            assert all(low <= int(number) <= high for number in re.findall(r"\d+", numbers.group(1)))


def test_the_cron_line() -> None:
    lines = [line for line in (RECIPES / "crontab").read_text().splitlines() if line and not line.startswith("#")]
    settings = [line for line in lines if re.match(r"[A-Z_]+\s*=", line)]
    assert settings == ["TUNER_HOME=/var/lib/tuner"]
    (job,) = [line for line in lines if line not in settings]
    minute_to_weekday, command = job.split(maxsplit=5)[:5], job.split(maxsplit=5)[5]
    check_schedule(" ".join(minute_to_weekday))
    assert "%" not in command  # cron reads it as a line break
    # Standard output is one indented JSON document a night, which jq reads one after another; it is no JSON a line.
    assert ">> /var/log/tuner/nightly.json 2>> /var/log/tuner/nightly.log" in command
    (sweep,) = [part for part in command.split("&&") if "tuner sweep" in part]
    check_command(shlex.split(sweep.partition(">>")[0]))


def test_cron_itself_takes_a_schedule_apart_only_when_it_is_one() -> None:
    for wrong in ("0 25 * * *", "0 2 * *", "x 2 * * *", "60 * * * *"):
        with pytest.raises(AssertionError):
            check_schedule(wrong)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for name in ("tuner-sweep.service", "tuner-sweep.timer"):
        # systemd-analyze looks for the program and the user too: the ones of this machine take their place.
        text = (RECIPES / name).read_text().replace("/opt/tuner/bin/tuner", "/bin/true")
        text = text.replace("User=tuner", "User=root")
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / "tuner-sweep.timer"),
         str(tmp_path / "tuner-sweep.service")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if "tuner-sweep" in line]
    assert complaints == []
    calendar = subprocess.run(
        ["systemd-analyze", "calendar", "*-*-* 02:00:00"], capture_output=True, text=True, check=False
    )
    assert calendar.returncode == 0
    assert "Next elapse" in calendar.stdout


def unit(name: str) -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(RECIPES / name)
    return parser


def test_the_service_runs_the_sweep_and_the_timer_runs_the_service() -> None:
    service, timer = unit("tuner-sweep.service"), unit("tuner-sweep.timer")
    check_command(shlex.split(service["Service"]["ExecStart"]))
    assert service["Service"]["Type"] == "oneshot"
    assert int(service["Service"]["TimeoutStopSec"]) >= 60
    assert timer["Timer"]["Unit"] == "tuner-sweep.service"
    assert timer["Timer"]["Persistent"] == "true"


#: What batch/v1 asks of the parts this recipe uses (Kubernetes API reference); unknown keys are refused.
CRONJOB: dict[str, Any] = {
    "type": "object", "required": ["apiVersion", "kind", "metadata", "spec"], "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "batch/v1"}, "kind": {"const": "CronJob"},
        "metadata": {"type": "object", "properties": {"name": {"pattern": "^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$"}}},
        "spec": {
            "type": "object", "required": ["schedule", "jobTemplate"], "additionalProperties": False,
            "properties": {
                "schedule": {"type": "string"}, "timeZone": {"type": "string"},
                "concurrencyPolicy": {"enum": ["Allow", "Forbid", "Replace"]},
                "startingDeadlineSeconds": {"type": "integer"},
                "successfulJobsHistoryLimit": {"type": "integer"}, "failedJobsHistoryLimit": {"type": "integer"},
                "jobTemplate": {"type": "object", "properties": {"spec": {
                    "type": "object", "required": ["template"], "additionalProperties": False,
                    "properties": {
                        "backoffLimit": {"type": "integer"}, "activeDeadlineSeconds": {"type": "integer"},
                        "podFailurePolicy": {"type": "object", "required": ["rules"]},
                        "template": {"type": "object", "properties": {"spec": {
                            "type": "object", "required": ["containers", "restartPolicy"],
                            "additionalProperties": False,
                            "properties": {
                                "restartPolicy": {"enum": ["Never", "OnFailure"]},
                                "terminationGracePeriodSeconds": {"type": "integer"},
                                "volumes": {"type": "array", "items": {"required": ["name"]}},
                                "containers": {"type": "array", "minItems": 1, "items": {
                                    "type": "object", "required": ["name", "image"], "additionalProperties": False,
                                    "properties": {
                                        "name": {"type": "string"}, "image": {"type": "string"},
                                        "command": {"type": "array", "items": {"type": "string"}},
                                        "args": {"type": "array", "items": {"type": "string"}},
                                        "env": {"type": "array", "items": {"required": ["name"]}},
                                        "resources": {"type": "object", "properties": {"limits": {
                                            "type": "object", "additionalProperties": {"type": "string"}}}},
                                        "volumeMounts": {"type": "array", "items": {
                                            "required": ["name", "mountPath"]}},
                                    }}},
                            }}}},
                    }}}},
            },
        },
    },
}  # fmt: skip


def test_the_kubernetes_cronjob() -> None:
    job = yaml.safe_load((RECIPES / "kubernetes-cronjob.yaml").read_text())
    jsonschema.validate(job, CRONJOB)
    check_schedule(job["spec"]["schedule"])
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    spec = job["spec"]["jobTemplate"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    check_command([*container["command"], *container["args"]])
    # podFailurePolicy is refused by the API unless pods are never restarted in place, and names its container.
    assert pod["restartPolicy"] == "Never"
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [1, 2, 3]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_github_workflow() -> None:
    text = (RECIPES / "github-actions.yml").read_text()
    workflow = yaml.load(text, yaml.BaseLoader)  # `on` is a key here and no boolean
    (schedule,) = workflow["on"]["schedule"]
    check_schedule(schedule["cron"])
    (job,) = workflow["jobs"].values()
    assert set(job) <= {"runs-on", "timeout-minutes", "env", "steps", "needs", "if", "permissions"}
    for step in job["steps"]:
        assert set(step) <= {"name", "uses", "with", "run", "if", "shell", "env", "id"}
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@v\d+", step["uses"])
    run = next(step["run"] for step in job["steps"] if "tuner sweep" in step.get("run", ""))
    check_command(shlex.split(run.partition("|")[0]))
    for step in job["steps"]:
        if "run" in step:
            subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
    assert job["timeout-minutes"] == "480"
