"""What an SGLang server says of itself: capacity, resolved against asked values, why it failed. Lines as of 0.5.23."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tuner.measure.records import EngineFacts

#: The line that sglang_start/serve.py prints: the version, and the command line as a JSON list.
_ASKED = re.compile(r"^tuner: SGLang (\S+) is asked for (\[.*\])$", re.M)
#: The scheduler's own figures, after it saw how much memory there is.
_CAPACITY = re.compile(r"\bmax_total_num_tokens=(\d+)")
_RUNNING = re.compile(r"\bmax_total_num_tokens=\d+.*?\bmax_running_requests=(\d+)")
#: 0.5.21 and later print a dict, earlier ones ServerArgs(name=value, ...).
_RESOLVED = re.compile(r"server_args=(?:\{|ServerArgs\()(.*)")
_WARNINGS = (
    (
        "Max running requests is reset to 48",
        "SGLang admits 48 requests at once, for speculation is on and --max-running-requests was not given: queueing "
        "beyond that is not speculation's doing",
    ),
    (
        "speculative_adaptive disabled",
        "SGLang switched adaptive speculation off and keeps one N at all batch sizes",
    ),
    (
        "Overlap schedule is not implemented for speculative decoding on CPU",
        "on CPU SGLang gives up overlapping scheduling with computing as soon as speculation is on; without "
        "speculation it overlaps",
    ),
)

REPORTED = (
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_adaptive",
    "speculative_accept_threshold_single",
    "speculative_accept_threshold_acc",
    "speculative_use_rejection_sampling",
    "max_running_requests",
    "max_total_num_tokens",
    "attention_backend",
    "page_size",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "device",
    "tp_size",
    "context_length",
    "chunked_prefill_size",
    "mem_fraction_static",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "random_seed",
)
#: Names that SGLang gives another way on purpose; a changed value under one of them is no surprise.
_ALIASES = {"NEXTN": "EAGLE"}
#: In the order in which one fault echoes through a log: the first line that holds one of them is the cause.
_CAUSES = (
    "tuner's CPU kernels for SGLang are for machines without a GPU",
    "error: argument",
    "error: unrecognized arguments",
    "error: ambiguous option",
    "ddress already in use",
    "is not a valid model identifier",
    "does not appear to have a file named",
    "Model architectures [",
    "does not implement set_eagle3_layers_to_capture",
    "requires the draft model to share the same vocabulary",
    "require the draft and target to share one vocab",
    "Unknown speculative algorithm name",
    "Not enough memory. Please try to increase --mem-fraction-static",
    "Capture cuda graph failed",
    "OutOfMemoryError",
    "OS OOM killer",
    "Initialization failed. warmup error",
    "Watchdog timeout",
)
_ECHOES = (
    "SIGQUIT",
    "sigquit",
    "Scheduler hit an exception",
    "scheduler died during initialization",
    "KeyboardInterrupt",
)
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Failure))\b(?::|$)")
_FRAME = re.compile(r'^File "(?:.*/)?([^"/]+)", line (\d+), in (\S+)')
_TIME = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]\s*")


def read_facts(log: str, server_info: Mapping[str, Any] | None = None) -> EngineFacts:
    """What the engine resolved, from /server_info where it was asked, else from the log, which serves alone."""
    asked = _ASKED.search(log)
    resolved = _from_info(server_info) if server_info else _from_log(log)
    capacity, running = _CAPACITY.search(log), _RUNNING.search(log)
    if capacity:
        resolved.setdefault("max_total_num_tokens", capacity.group(1))
    if running:
        resolved["max_running_requests"] = running.group(1)
    tokens = resolved.get("max_total_num_tokens")
    command = json.loads(asked.group(2)) if asked else list(map(str, _launch_command(server_info)))
    return EngineFacts(
        version=_text(server_info, "version") or (asked.group(1) if asked else None),
        kv_cache_tokens=int(tokens) if tokens else None,
        resolved=tuple(sorted(resolved.items())),
        warnings=(*rewritten(asked_values(command), resolved), *(text for sign, text in _WARNINGS if sign in log)),
    )


def asked_values(command: list[str]) -> dict[str, str]:
    """The reported arguments that a command line sets, by SGLang's own names."""
    values: dict[str, str] = {}
    for position, arg in enumerate(command):
        if not arg.startswith("--"):
            continue
        name, equals, value = arg.removeprefix("--").partition("=")
        following = command[position + 1] if position + 1 < len(command) else "--"
        switch = not equals and following.startswith("--")
        values[name.replace("-", "_")] = value if equals else "True" if switch else following
    return {name: value for name, value in values.items() if name in REPORTED}


def rewritten(asked: Mapping[str, str], resolved: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for every value that SGLang runs with another one than was asked for."""
    return tuple(
        f"SGLang was asked for --{name.replace('_', '-')} {value} and runs with {resolved[name]}"
        for name, value in asked.items()
        if name in resolved and resolved[name] != _ALIASES.get(value.upper(), value)
    )


def root_cause(log: str) -> str | None:
    """The first line that names a known fault, else the first exception, a child's included, that is no echo."""
    lines = [_TIME.sub("", line.strip()) for line in log.splitlines()]
    for line in lines:
        if any(sign in line for sign in _CAUSES):
            return line[:400]
    for position, line in enumerate(lines):
        found = _EXCEPTION.match(line)
        if found and not any(echo in line for echo in _ECHOES):
            return (line if found.end() < len(line) else f"{line} {_place(lines[:position])}".strip())[:400]
    return None


def _place(lines: list[str]) -> str:
    """Where the traceback that ends here was raised: all there is to tell of an exception without a message."""
    frames = [found for found in map(_FRAME.match, lines) if found]
    return f"in {frames[-1].group(3)}, {frames[-1].group(1)} line {frames[-1].group(2)}" if frames else ""


def _from_info(info: Mapping[str, Any]) -> dict[str, str]:
    values = {name: str(info[name]) for name in REPORTED if info.get(name) is not None}
    states = info.get("internal_states") or [{}]
    admitted = [state.get("effective_max_running_requests_per_dp") for state in states]
    if all(admitted):
        values["max_running_requests"] = str(sum(admitted))
    return values


def _from_log(log: str) -> dict[str, str]:
    found = _RESOLVED.search(log)
    values = {}
    for name in REPORTED if found else ():
        value = re.search(rf"(?:'{name}': |\b{name}=)('[^']*'|[^,)}}]+)", found.group(1) if found else "")
        if value and value.group(1) != "None":
            values[name] = value.group(1).strip("'")
    return values


def _launch_command(info: Mapping[str, Any] | None) -> list[Any]:
    command = (info or {}).get("launch_command")
    return command if isinstance(command, list) else str(command).split() if command else []


def _text(info: Mapping[str, Any] | None, key: str) -> str | None:
    value = (info or {}).get(key)
    return str(value) if value is not None else None
