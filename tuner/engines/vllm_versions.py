"""What each vLLM version accepts: methods, keys of its speculative config, the old flags. From released wheels."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

from tuner.errors import UserError
from tuner.spec.speculation import Scalar, SpecConfig

Version = tuple[int, ...]
Span = tuple[Version, Version | None]  # from (inclusive), until (exclusive, None: still there)

#: Methods by the versions that run them. draft_model raised NotImplementedError from 0.10 to 0.14; medusa left in 0.33.
METHOD_SPANS: MappingProxyType[str, Span] = MappingProxyType(
    {
        "ngram": ((0, 4), None),
        "eagle": ((0, 7), None),
        "eagle3": ((0, 8, 5), None),
        "medusa": ((0, 5), (0, 33)),
        "mtp": ((0, 11), None),
        "draft_model": ((0, 15), None),
        "suffix": ((0, 11, 1), None),
        "dflash": ((0, 19), None),
        "dspark": ((0, 25), None),
    }
)
#: Keys every method takes. An unknown key is fatal in vLLM, so a key outside its span is refused here.
COMMON_KEYS: MappingProxyType[str, Span] = MappingProxyType(
    {
        "draft_tensor_parallel_size": ((0, 8, 3), None),
        "quantization": ((0, 8, 3), None),
        "max_model_len": ((0, 8, 3), None),
        "revision": ((0, 8, 3), None),
        "code_revision": ((0, 8, 3), None),
        "enforce_eager": ((0, 11), None),
        "disable_by_batch_size": ((0, 8, 3), (0, 17)),
        "speculative_token_tree": ((0, 9, 2), (0, 21)),
        "disable_padded_drafter_batch": ((0, 11, 1), None),
        "parallel_drafting": ((0, 16), None),
        "rejection_sample_method": ((0, 18), None),
        "synthetic_acceptance_rates": ((0, 20), None),
        "synthetic_acceptance_length": ((0, 20), None),
        "draft_sample_method": ((0, 21), None),
        "attention_backend": ((0, 22), None),
        "num_speculative_tokens_per_batch_size": ((0, 24), None),
        "use_heterogeneous_vocab": ((0, 26), None),
        "kv_cache_dtype": ((0, 26), None),
        "moe_backend": ((0, 22), None),
        "use_local_argmax_reduction": ((0, 22), None),
        "disable_eagle_block_drop": ((0, 30), None),
    }
)
#: Keys that one method takes, as fatal elsewhere.
METHOD_KEYS: MappingProxyType[str, Mapping[str, Span]] = MappingProxyType(
    {
        "ngram": {"prompt_lookup_min": ((0, 4), None), "prompt_lookup_max": ((0, 4), None)},
        "suffix": {
            "suffix_decoding_max_tree_depth": ((0, 11, 1), None),
            "suffix_decoding_max_cached_requests": ((0, 11, 1), None),
            "suffix_decoding_max_spec_factor": ((0, 11, 1), None),
            "suffix_decoding_min_token_prob": ((0, 11, 1), None),
        },
        "mtp": {"index_share_for_mtp_iteration": ((0, 29), None)},
        "dspark": {"enable_adaptive_verification": ((0, 28), None), "dspark_draft_topk": ((0, 28), None)},
    }
)
#: Keys whose values are lists, carried as JSON text in an option. Any other text is a text to vLLM too: a
#: speculative_token_tree looks like a list and is none.
LIST_KEYS = frozenset({"num_speculative_tokens_per_batch_size", "synthetic_acceptance_rates"})
#: The JSON flag `--speculative-config` replaced the old ones by this version.
JSON_FLAG: Version = (0, 8, 3)
#: Engines match at least this many tokens of context before they propose (ngram), and at most that many.
NGRAM_LOOKUP_MIN, NGRAM_LOOKUP_MAX = 2, 4
#: `--per-request-spec-decode-metrics` exists from here on; earlier ones have counters only.
PER_REQUEST_METRICS: Version = (0, 29)
#: From here on (the V1 engine) prefix caching is on unless `--no-enable-prefix-caching` is given.
PREFIX_CACHING_DEFAULT: Version = (0, 8)
#: Most tokens a chain may draft (`MAX_SPEC_LEN` of the V1 rejection sampler).
MOST_N = 128


def parse_version(text: str) -> Version:
    """`0.32.0.post1+cpu` -> (0, 32, 0). An unreadable version is refused: flags are never guessed."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if not found:
        raise UserError(f"vLLM version '{text}' is not readable, so its flags are unknown: give one like 0.32.0")
    return tuple(int(part or 0) for part in found.groups())


def _in_span(version: Version, span: Span) -> bool:
    return span[0] <= version and (span[1] is None or version < span[1])


def _span_text(span: Span) -> str:
    first = ".".join(map(str, span[0]))
    return f"{first} and later" if span[1] is None else f"{first} to before {'.'.join(map(str, span[1]))}"


def has_method(method: str, version: Version) -> bool:
    return _in_span(version, METHOD_SPANS[method])


def check_method(spec: SpecConfig, version: Version) -> None:
    """Refuse a method, N, tree or option that this version does not have; the message says which versions do."""
    shown = ".".join(map(str, version))
    if not has_method(spec.method, version):
        span = _span_text(METHOD_SPANS[spec.method])
        raise UserError(f"vLLM {shown} has no method '{spec.method}': it is in {span}")
    if spec.tree is not None:
        raise UserError(f"vLLM drafts chains only, and '{spec.label}' is a tree: use SGLang, or give n")
    if spec.n > MOST_N:
        raise UserError(f"vLLM drafts at most {MOST_N} tokens per verify step, got n = {spec.n}")
    if "tensor_parallel_size" in dict(spec.options):
        raise UserError("the speculative config has no tensor_parallel_size: write draft_tensor_parallel_size")
    keys = {**COMMON_KEYS, **METHOD_KEYS.get(spec.method, {})}
    for key, _ in spec.options:
        if key not in keys:
            known = ", ".join(sorted(keys))
            raise UserError(f"vLLM's speculative config has no key '{key}' for {spec.method}: use {known}")
        if not _in_span(version, keys[key]):
            raise UserError(f"vLLM {shown} has no speculative key '{key}': it is in {_span_text(keys[key])}")


def speculative_args(spec: SpecConfig, version: Version) -> tuple[str, ...]:
    """The flags that turn `spec` on in this version; none for off."""
    if spec.is_off:
        return ()
    check_method(spec, version)
    if version < JSON_FLAG:
        return _old_flags(spec)
    return ("--speculative-config", json.dumps(speculative_json(spec), sort_keys=False))


def speculative_json(spec: SpecConfig) -> dict[str, object]:
    """The value of `--speculative-config`. `method` is always explicit: vLLM guesses wrong from paths otherwise."""
    config: dict[str, object] = {"method": spec.method}
    if spec.draft:
        config["model"] = spec.draft
    config["num_speculative_tokens"] = spec.n
    if spec.method == "ngram":
        config |= dict(zip(("prompt_lookup_min", "prompt_lookup_max"), _lookup(spec), strict=True))
    config |= {key: _value(key, value) for key, value in spec.options if key not in config}
    return config


def _lookup(spec: SpecConfig) -> tuple[int, int]:
    """Both bounds, always: with one or none given vLLM takes other values than its help says (0.32)."""
    given = {key: _bound(key, value) for key, value in spec.options if key in METHOD_KEYS["ngram"]}
    most = given.get("prompt_lookup_max", max(NGRAM_LOOKUP_MAX, given.get("prompt_lookup_min", 0)))
    return given.get("prompt_lookup_min", min(NGRAM_LOOKUP_MIN, most)), most


def _bound(key: str, value: Scalar) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise UserError(f"{key} is {value!r}: give a whole number of tokens") from None


def list_value(value: Scalar) -> list[object] | None:
    """A list from its JSON text; None where it is none."""
    try:
        found = json.loads(str(value))
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _value(key: str, value: Scalar) -> object:
    if key not in LIST_KEYS:
        return value
    found = list_value(value)
    if found is None:
        raise UserError(f"{key} is {value!r}, which is no list: write one as JSON, such as '[0.8, 0.5]'")
    return found


def _old_flags(spec: SpecConfig) -> tuple[str, ...]:
    flags = ["--speculative-model", "[ngram]" if spec.method == "ngram" else str(spec.draft)]
    flags += ["--num-speculative-tokens", str(spec.n)]
    if spec.method == "ngram":
        low, high = _lookup(spec)
        flags += ["--ngram-prompt-lookup-max", str(high), "--ngram-prompt-lookup-min", str(low)]
    return tuple(flags)
