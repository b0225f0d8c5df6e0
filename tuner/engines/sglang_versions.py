"""What each SGLang version knows: algorithms, speculative options, endpoints. Read in the wheels 0.5.12 to 0.5.23."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType

from tuner.errors import UserError
from tuner.spec.speculation import SpecConfig

Version = tuple[int, ...]

FIRST: Version = (0, 5, 12)  #: from here on one spelling of the n-gram flags, DFLASH and adaptive speculation
LATEST_SEEN: Version = (0, 5, 23)
PER_REQUEST_DETAILS: Version = (0, 5, 19)  #: `return_spec_tokens_details` in the OpenAI routes, streams included
READY_PATH: Version = (0, 5, 20)  #: GET /ready
ADAPTIVE_BY_BATCH: Version = (0, 5, 15)  #: candidate steps by batch size, 0 among them; before, one list for all

ALGORITHMS: Mapping[str, tuple[str, Version]] = MappingProxyType(
    {
        "eagle3": ("EAGLE3", FIRST),
        "eagle": ("EAGLE", FIRST),
        "mtp": ("NEXTN", FIRST),
        "draft_model": ("STANDALONE", FIRST),
        "ngram": ("NGRAM", FIRST),
        "dflash": ("DFLASH", FIRST),
        "dspark": ("DSPARK", (0, 5, 18)),
    }
)
#: Methods that SGLang drafts with its EAGLE workers: a chain or a tree of steps, topk and verified nodes.
EAGLE_FAMILY = frozenset({"eagle3", "eagle", "mtp", "draft_model"})

_EAGLE, _EVERY = EAGLE_FAMILY, frozenset(ALGORITHMS)
_DRAFTS, _NGRAM, _DSPARK = _EVERY - {"ngram"}, frozenset({"ngram"}), frozenset({"dspark"})
#: Option key (the flag is --speculative-<key>) -> methods that read it, first version. Unknown flags end SGLang.
OPTIONS: Mapping[str, tuple[frozenset[str], Version]] = MappingProxyType(
    {
        "accept_threshold_single": (_EVERY, FIRST),
        "accept_threshold_acc": (_EVERY, FIRST),
        "adaptive_config": (frozenset({"eagle", "eagle3", "mtp"}), ADAPTIVE_BY_BATCH),
        "adaptive_table": (frozenset({"eagle", "eagle3"}), ADAPTIVE_BY_BATCH),
        "attention_mode": (_EVERY, FIRST),
        "draft_attention_backend": (_DRAFTS, FIRST),
        "draft_kv_cache_dtype": (_DRAFTS, (0, 5, 18)),
        "draft_load_format": (_DRAFTS, FIRST),
        "draft_model_quantization": (_DRAFTS, FIRST),
        "draft_model_revision": (_DRAFTS, FIRST),
        "draft_sink_size": (_EAGLE, (0, 5, 21)),
        "draft_window_size": (_EAGLE | {"dflash"}, FIRST),
        "dspark_align_verify_tokens_to_graph_tier": (_DSPARK, (0, 5, 18)),
        "dspark_confidence_sts_path": (_DSPARK, (0, 5, 18)),
        "dspark_sps_table_path": (_DSPARK, (0, 5, 18)),
        "moe_a2a_backend": (_DRAFTS, FIRST),
        "moe_runner_backend": (_DRAFTS, FIRST),
        "ngram_capacity": (_NGRAM, FIRST),
        "ngram_external_corpus_max_tokens": (_NGRAM, FIRST),
        "ngram_external_corpus_path": (_NGRAM, FIRST),
        "ngram_external_sam_budget": (_NGRAM, FIRST),
        "ngram_match_type": (_NGRAM, FIRST),
        "ngram_max_trie_depth": (_NGRAM, FIRST),
        "ngram_min_bfs_breadth": (_NGRAM, FIRST),
        "token_map": (frozenset({"eagle", "mtp"}), FIRST),
        "use_block_verification": (frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"}), (0, 5, 23)),
        "use_rejection_sampling": (frozenset({"eagle", "eagle3", "mtp"}), (0, 5, 15)),
    }
)


def parse_version(text: str) -> Version:
    """`0.5.23.post1` -> (0, 5, 23). A served address may not tell its version: that counts as the latest seen."""
    if text == "unknown":
        return LATEST_SEEN
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", text)
    if not found:
        raise UserError(f"SGLang version '{text}' is not readable, so its flags are unknown: give one like 0.5.23")
    major, minor, patch = (int(part) for part in found.groups())
    return major, minor, patch


def check_version(version: Version) -> None:
    if version < FIRST:
        raise UserError(
            f"SGLang {version_text(version)} is older than tuner knows: its speculative flags and metrics have other "
            f"names; use {version_text(FIRST)} or later"
        )


def has_method(method: str, version: Version) -> bool:
    return method in ALGORITHMS and version >= ALGORITHMS[method][1]


def check_method(spec: SpecConfig, version: Version) -> None:
    """UserError for a method or an option that this version does not have."""
    if spec.method not in ALGORITHMS:
        last = " (0.32 or earlier)" if spec.method == "medusa" else ""
        raise UserError(
            f"SGLang has no {spec.method}: measure it with vLLM{last}, or use one of {', '.join(ALGORITHMS)}"
        )
    algorithm, since = ALGORITHMS[spec.method]
    if not has_method(spec.method, version):
        raise UserError(
            f"SGLang {version_text(version)} has no {algorithm}: it came with {version_text(since)} or before that, "
            f"later than this one; use a newer SGLang for method {spec.method}"
        )
    for key, _value in spec.options:
        _check_option(key, spec.method, version)


def _check_option(key: str, method: str, version: Version) -> None:
    known = [name for name, (methods, since) in OPTIONS.items() if method in methods and version >= since]
    if key in known:
        return
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
    raise UserError(
        f"option {key} is not one that method {method} takes on SGLang {version_text(version)}: {hint} "
        f"(options are SGLang's flags without --speculative-)"
    )


def version_text(version: Version) -> str:
    return ".".join(map(str, version))
