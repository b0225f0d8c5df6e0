"""Where SGLang's output under speculation is not the target's own: such an arm is labelled, and ranked apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.engines.base import LaunchOptions
from tuner.engines.sglang_versions import EAGLE_FAMILY
from tuner.spec.speculation import SpecConfig

#: Devices without SGLang's sampling verification; on ROCm only rejection sampling has one (eagle_utils.py, 0.5.23).
_ARGMAX_DEVICES = {"cpu": "CPU", "xpu": "XPU", "hip": "ROCm", "rocm": "ROCm"}
THRESHOLDS = ("accept_threshold_single", "accept_threshold_acc")
SIMULATED = "SGLANG_SIMULATE_ACC_LEN"
#: The words of a label that another build of the engine alone can lift.
BY_ARGMAX = "SGLang verifies drafts by argmax"


def number(value: object) -> float | None:
    """None for what is no number: preflight refuses it (sglang_limits.check_numbers)."""
    try:
        return float(str(value))
    except ValueError:
        return None


def lossy_reason(
    spec: SpecConfig, options: LaunchOptions, device: str, temperature: float, sampling: Mapping[str, Any]
) -> str | None:
    """Why output is not distributed as the target's at this temperature, one sentence; None where nothing is known.

    `sampling`: the other request fields, such as min_p and penalties. DESIGN: lossy arms are never ranked beside
    lossless ones.
    """
    if spec.is_off:
        return None
    return next(_reasons(spec, options, device, temperature, sampling), None)


def _reasons(
    spec: SpecConfig, options: LaunchOptions, device: str, temperature: float, sampling: Mapping[str, Any]
) -> Iterator[str]:
    env = dict(options.env)
    if (number(env.get(SIMULATED)) or 0) > 0:
        yield f"{SIMULATED} sets the acceptance length: the text is junk at any temperature"
    if _sets(sampling, "presence_penalty", 0) or _sets(sampling, "frequency_penalty", 0):
        yield _relaxed("presence and frequency penalties")
    if _sets(sampling, "repetition_penalty", 1):
        yield _relaxed("the repetition penalty")
    if temperature == 0:
        return
    by_argmax = spec.method in EAGLE_FAMILY | {"ngram"} and device in _ARGMAX_DEVICES
    if by_argmax and not (_ARGMAX_DEVICES[device] == "ROCm" and _samples_on_rocm(spec)):
        yield _argmax(device, temperature)
    if spec.method == "ngram" and env.get("SGLANG_NGRAM_FORCE_GREEDY_VERIFY", "0").lower() in ("1", "true"):
        yield "SGLANG_NGRAM_FORCE_GREEDY_VERIFY verifies n-gram drafts by argmax: temperature is ignored"
    loose = [key for key in THRESHOLDS if _accepts_more(dict(spec.options).get(key))]
    if loose:
        yield _loose(loose[0])
    if _sets(sampling, "min_p", 0):
        yield "SGLang ignores min_p while it verifies drafts: tokens that min_p rules out can come through"


def resolved_reason(resolved: Mapping[str, Any], temperature: float, accelerator: str | None = None) -> str | None:
    """The same of a running server, from what it resolved (/server_info or its log): thresholds can be changed while it
    runs, and the device need not be known beforehand. `accelerator`: what its `cuda` is, if it is known."""
    algorithm = str(resolved.get("speculative_algorithm") or "None").upper()
    if algorithm == "NONE" or temperature == 0:
        return None
    device = str(resolved.get("device") or "").lower().partition(":")[0]
    if device == "cuda":  # also of ROCm, whose torch answers under that name
        device = accelerator or device
    sampled = str(resolved.get("speculative_use_rejection_sampling")).lower() == "true"
    if device in _ARGMAX_DEVICES and not (_ARGMAX_DEVICES[device] == "ROCm" and sampled):
        return _argmax(device, temperature)
    for key in THRESHOLDS:
        if _accepts_more(resolved.get(f"speculative_{key}")):
            return _loose(key)
    return None


def _argmax(device: str, temperature: float) -> str:
    return (
        f"on {_ARGMAX_DEVICES[device]} {BY_ARGMAX}: temperature {temperature:g} and top_p are ignored under "
        "speculation and every token after the first is the greedy one"
    )


def _accepts_more(threshold: object) -> bool:
    found = number(threshold)
    return found is not None and found < 1


def _loose(threshold: str) -> str:
    return f"{threshold} below 1 accepts drafted tokens more often than the target would have sampled them"


def _sets(sampling: Mapping[str, Any], field: str, neutral: float) -> bool:
    return sampling.get(field) not in (None, neutral)


def _relaxed(what: str) -> str:
    return (
        f"SGLang applies {what} as they stood before the verify step to every drafted token: not what they are without "
        "speculation"
    )


def _samples_on_rocm(spec: SpecConfig) -> bool:
    """ROCm samples by rejection sampling alone, which SGLang switches on by itself for EAGLE chains (0.5.23)."""
    options = dict(spec.options)
    automatic = spec.method in ("eagle", "mtp") and spec.tree is None and "token_map" not in options
    return bool(options.get("use_rejection_sampling", automatic))
