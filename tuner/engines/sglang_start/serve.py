"""Starts SGLang's own server with a key from the environment; runs in the engine's, needs nothing of tuner's.

    SGLANG_API_KEY=… python serve.py <arguments of sglang.launch_server>

SGLang 0.5.23 takes its key by --api-key alone, where every user of the machine can read it, and prints it with its
arguments into the log. Here it goes in after the command line is parsed, and log lines show stars for it.
"""

# mypy: ignore-errors
import json
import logging
import os
import sys
from pathlib import Path

KEY_VARIABLE = "SGLANG_API_KEY"


def withhold(secret):
    """Print stars for the secret in every log line of this process: SGLang logs all its arguments."""
    make = logging.getLogRecordFactory()

    def record(*args, **kwargs):
        made = make(*args, **kwargs)
        if secret in str(made.msg) or secret in str(made.args):
            made.msg, made.args = made.getMessage().replace(secret, "***"), ()
        return made

    logging.setLogRecordFactory(record)


def main(argv):
    key = os.environ.pop(KEY_VARIABLE, None)
    # ninja, with which SGLang builds its n-gram index at the first start, is installed beside the interpreter.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))

    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree
    from sglang.version import __version__

    print(f"tuner: SGLang {__version__} is asked for {json.dumps(argv)}", flush=True)
    load_plugins()
    server_args = prepare_server_args(argv)
    if key:
        withhold(key)
        server_args.api_key = key
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
