"""Resolves commands with vLLM's own parser, in vLLM's environment: no server, no weights. Run by test_vllm_parser.py.

In: a JSON object on stdin, {name: [arguments after the module's name]}. Out: one line `RESOLVED {…}` on stdout:
`commands`: for each name what vLLM made of it; `error` where it refused, with the speculative part if that resolved.
`keys`, `methods`: what its speculative config has.
"""

import json
import sys
from dataclasses import fields
from typing import get_args

import vllm.config.speculative as speculation
import vllm.model_executor.models.registry as registry
from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args

# vLLM looks at every model class in a new Python, which imports torch and itself again; here they are imported.
if hasattr(registry, "_run_in_subprocess"):
    registry._run_in_subprocess = lambda look: look()


def resolve(argv):
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
    validate_parsed_serve_args(args)
    engine_args = AsyncEngineArgs.from_cli_args(args)
    try:
        config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "speculative": without_the_engine(engine_args)}
    return {
        "model": config.model_config.model,
        "dtype": str(config.model_config.dtype),
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "seed": config.model_config.seed,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "per_request": config.observability_config.per_request_spec_decode_metrics,
        "speculative": shown(config.speculative_config),
    }


def without_the_engine(engine_args):
    """The speculative config alone, as if everything this machine lacks for it were there; None if it fails too."""
    installed = getattr(speculation, "has_arctic_inference", None)
    if installed is not None:
        speculation.has_arctic_inference = lambda: True
    try:
        target = engine_args.create_model_config()
        return shown(engine_args.create_speculative_config(target, speculation.ParallelConfig()))
    except Exception:
        return None
    finally:
        if installed is not None:
            speculation.has_arctic_inference = installed


def shown(config):
    """The resolved fields that JSON can hold."""
    if config is None:
        return None
    plain = {name: value for name, value in vars(config).items() if isinstance(value, str | int | float | list)}
    draft = config.draft_model_config
    return plain | {"architectures": list(draft.architectures) if draft else None}


def main():
    commands = {}
    for name, argv in json.load(sys.stdin).items():
        try:
            commands[name] = resolve(argv)
        except SystemExit as error:
            commands[name] = {"error": f"{type(error).__name__}: {error}", "speculative": None}
    methods = list(flat(speculation.SpeculativeMethod))
    keys = [field.name for field in fields(SpeculativeConfig)]
    print("RESOLVED " + json.dumps({"commands": commands, "keys": keys, "methods": methods}))


def flat(literal):
    """The values of a Literal, nested ones included."""
    for value in get_args(literal):
        yield from [value] if isinstance(value, str) else flat(value)


if __name__ == "__main__":
    main()
