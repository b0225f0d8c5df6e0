"""What a vLLM log says: capacity, runner, resolved speculation, and why a start failed. Lines as of 0.29 to 0.32."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tuner.measure.records import EngineFacts

_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_VERSION = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\)")
_RESOLVED = re.compile(r"speculative_config=(SpeculativeConfig\(.*?\)|None)")
_FIELDS = re.compile(r"\b(dtype|max_seq_len|tensor_parallel_size|quantization|enforce_eager|seed)=([^,\s)]+)")
_RUNNER = (
    (re.compile(r"using the V1 model runner", re.I), "V1"),
    (re.compile(r"Using V2 Model Runner", re.I), "V2"),
)
_WARNING = re.compile(r"WARNING [^\]]*\] (.*)")
_PREFIX = re.compile(r"^\([\w-]+ pid=\d+\)\s*|^(?:CRITICAL|ERROR) [\d:-]+ [\d:.]+ \[[^\]]*\]\s*")

#: A line with one of these says what went wrong; the first in the log is the cause, the later ones its echoes.
_CAUSES = (
    "is not a valid model identifier",
    "Model architectures [",
    "does not support EAGLE3 interface",
    "should have the same vocabulary size",
    "OutOfMemoryError",
    "less than desired GPU memory utilization",
    "No available memory for the cache blocks",
    "To serve at least one request with the model's max seq len",
    "CUDA out of memory",
    "Attempted to load weight",
    "Tried to load weights of size",
    "There is no module or parameter named",
    "Following weights were not initialized from checkpoint",
    "Unsupported speculative method",
    "Arctic Inference is required",
    "Address already in use",
    "error: unrecognized arguments",
    "error: argument",
    "No module named",
)
_ECHO = ("Engine core initialization failed", "EngineCore failed to start", "WorkerProc failed to start")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Failure))\b:? ?(.*)")
#: What is no statement of a fault: lines below ERROR level, and source lines of a traceback.
_NO_FAULT = re.compile(r"^(?:INFO|WARNING|DEBUG) [\d:-]+ |^(?:raise|assert|return|with|f?[\"'])")
#: pydantic puts the fault below its headline: the field, if it is one field's, then the sentence.
_VALIDATION = re.compile(r"\bvalidation errors? for (\w+)$")
_VALIDATION_LINES = 3
LONGEST = 400


def read_facts(log: str) -> EngineFacts:
    """Everything the start-up log tells; what it does not tell stays None."""
    kv = _KV_TOKENS.search(log)
    version = _VERSION.search(log)
    line = next((text for text in log.splitlines() if _VERSION.search(text)), "")
    spec = _RESOLVED.search(line)
    resolved = {key: value.strip("'") for key, value in _FIELDS.findall(line)}
    if spec:
        resolved["speculative_config"] = re.sub(r"model='[^']*/([^'/]+)'", r"model='\1'", spec.group(1))
    return EngineFacts(
        version=version.group(1) if version else None,
        kv_cache_tokens=int(kv.group(1).replace(",", "")) if kv else None,
        runner=next((name for pattern, name in _RUNNER if pattern.search(log)), None),
        resolved=tuple(sorted(resolved.items())),
        warnings=tuple(dict.fromkeys(m.group(1)[:300] for m in _WARNING.finditer(log)))[:20],
    )


def root_cause(log: str) -> str | None:
    """The first line that names the fault: a known one, else the first exception that is not an echo of another."""
    lines = [line for line in map(_strip, log.splitlines()) if not _NO_FAULT.match(line)]
    for line in lines:
        if any(text in line for text in _CAUSES):
            return _shown(line)
    for number, line in enumerate(lines):
        if _VALIDATION.search(line):
            return _shown(_validation(lines[number:]))
        if _EXCEPTION.match(line) and not any(text in line for text in _ECHO):
            return _shown(line)
    return None


def _strip(line: str) -> str:
    """The message without process name, level, time and place; applied twice, for both may stand before it."""
    return _PREFIX.sub("", _PREFIX.sub("", line.strip())).strip()


def _validation(lines: Sequence[str]) -> str:
    """`Config: field: sentence` from pydantic's headline and the lines below it, up to the one with [type=…]."""
    found = _VALIDATION.search(lines[0])
    told = [found.group(1)] if found else []
    for line in lines[1 : _VALIDATION_LINES + 1]:
        told.append(line.partition(" [type=")[0].removeprefix("Value error, "))
        if " [type=" in line:
            break
    return ": ".join(part for part in told if part)


def _shown(line: str) -> str:
    """A cause without the engine's list of everything it does support."""
    return line.partition(" Supported architectures:")[0].removeprefix("Value error, ")[:LONGEST]
