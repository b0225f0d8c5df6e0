"""Resolves commands with SGLang's own parser, in its environment: no server, no weights. Run by test_sglang_parser.py.

In: a JSON object on stdin, {name: [arguments of sglang.launch_server]}. Out: one line `RESOLVED {…}` on stdout, for
each name what was parsed, and what SGLang resolved it to or the error it ended with.
"""

import json
import sys

from sglang.srt.arg_groups.overrides import resolved_view, resolving_view
from sglang.srt.arg_groups.validation_hook import check_server_args
from sglang.srt.server_args import prepare_server_args

SHOWN = (
    "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "speculative_adaptive", "speculative_ngram_max_bfs_breadth",
    "speculative_ngram_max_trie_depth", "speculative_ngram_match_type", "speculative_dflash_block_size",
    "speculative_dspark_block_size", "speculative_accept_threshold_single", "speculative_draft_window_size",
    "speculative_use_rejection_sampling", "max_running_requests", "max_total_tokens", "context_length", "random_seed",
    "disable_radix_cache", "enable_metrics", "device", "page_size", "served_model_name", "api_key", "tp_size",
)  # fmt: skip


def resolve(argv):
    args = prepare_server_args(argv)
    asked = {name: getattr(args, name) for name in SHOWN}
    try:
        args.resolve_once()
        resolving_view(args)
        check_server_args(args)
    except Exception as error:
        return {"parsed": asked, "error": f"{type(error).__name__}: {error}"}
    view = resolved_view(args)
    return {"parsed": asked, "resolved": {name: getattr(view, name) for name in SHOWN}}


def main():
    found = {}
    for name, argv in json.load(sys.stdin).items():
        try:
            found[name] = resolve(argv)
        except (Exception, SystemExit) as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    print("RESOLVED " + json.dumps(found))


if __name__ == "__main__":
    main()
