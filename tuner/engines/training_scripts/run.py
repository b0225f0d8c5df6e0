"""Starts one stage of draft training: a script for the engine's Python, which has torch and no tuner.

    python -I run.py STAGE JOB.json [RANK]

Stages: `respond` (the target answers prompts), `features` (its hidden states on them), `train` (a draft learns them).
The last line of standard output says how far it is; a failure ends with a line that begins with `error:`.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Ranks speak over the loopback alone, whatever the machine's name resolves to.
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

if __name__ == "__main__":
    from draft_trainer.stages import main

    sys.exit(main(sys.argv[1:]))
