"""How the command to deploy differs from the measured one: what a server in production will not have, in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tuner.report.data import ReportInput
from tuner.report.redact import shown_argv
from tuner.spec.speculation import SpecConfig


def differences(data: ReportInput, spec: SpecConfig) -> tuple[str, ...]:
    """Empty where nothing was launched by tuner, or no command is known."""
    argv = data.deploy.get(spec)
    trial = next((one.trial for one in data.evidence.tried if one.spec == spec and one.trial.command), None)
    if argv is None or trial is None:
        return ()
    lines = []
    measured, deployed = flags_of(shown_argv(trial.command)), flags_of(shown_argv(argv))
    if gone := [flag for flag in measured if flag not in deployed]:
        lines.append(f"Measured with these flags, which are not in it: {' '.join(gone)}.")
    if new := [flag for flag in deployed if flag not in measured]:
        lines.append(f"In it and not measured: {' '.join(new)}.")
    own = data.workload.engine_options.env
    if env := [f"{name}={shlex.quote(value)}" for name, value in trial.env if own.get(name) != value]:
        lines.append(f"Measured with these variables, which it does not set: {' '.join(env)}.")
    if not data.workload.engine_options.prefix_caching:
        lines.append("Prefix caching was off while measuring; in it that is at the engine's default.")
    if any(flag.startswith("--host ") for flag in gone):
        lines.append("Measured on loopback with a random API key; it sets no key, host or port.")
    return tuple(lines)


def flags_of(argv: Sequence[str]) -> list[str]:
    """Every flag together with its values; the program and its module are left out."""
    found: list[list[str]] = []
    for word in argv:
        if word.startswith("--"):
            found.append([word])
        elif found:
            found[-1].append(word)
    return [shlex.join(words) for words in found]
