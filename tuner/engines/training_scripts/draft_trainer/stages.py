"""The stages that can be asked for, each over all its ranks."""

import os
import sys
import traceback
from pathlib import Path
from time import monotonic

from draft_trainer.job import Job, read_job
from draft_trainer.processes import die_with_parent, other_ranks, say

#: The file that ranks find each other by; children inherit the variable.
MEETING = "TUNER_TRAINING_MEETING"


def main(argv: list[str]) -> int:
    stage, path = argv[0], Path(argv[1])
    rank = int(argv[2]) if len(argv) > 2 else 0
    die_with_parent()
    try:
        job = read_job(path)
        # The first rank's process id: a file of a run before this one is not met again.
        os.environ.setdefault(MEETING, str(path.with_name(f".meeting-{os.getpid()}")))
        if rank:
            STAGES[stage](job, rank)
        else:
            with other_ranks(stage, path, job.ranks):
                STAGES[stage](job, 0)
    except Exception as error:
        # All of it for the log; the line that people are shown is the last.
        traceback.print_exc()
        sys.stderr.flush()
        say(f"error: {stage} rank {rank}: {type(error).__name__}: {error}")
        return 1
    finally:
        if not rank and (meeting := os.environ.get(MEETING)):
            Path(meeting).unlink(missing_ok=True)
    return 0


def respond(job: Job, rank: int) -> None:
    import torch

    from draft_trainer.respond import respond as run

    torch.set_num_threads(1)
    run(job, rank)


def train(job: Job, rank: int) -> None:
    """All ranks take every step; the first one saves, looks at what was held out, and writes the record."""
    import torch

    from draft_trainer.corpus import Corpus
    from draft_trainer.export import export
    from draft_trainer.held_out import acceptance
    from draft_trainer.loop import Trainer
    from draft_trainer.ranks import Ranks
    from draft_trainer.record import training_record, write_record

    torch.set_num_threads(1)
    ranks = Ranks(rank, job.ranks, Path(os.environ[MEETING]))
    trainer = Trainer(job, ranks)
    trainer.train()
    ranks.leave()
    if rank:
        return
    say(f"{job.method}: acceptance on held-out answers")
    began_s = monotonic()
    held = Corpus(Path(job.data), True, trainer.corpus.width)
    with trainer.precision():
        found = acceptance(trainer.draft, held, job.seed)
    say(f"{job.method}: looked at in {monotonic() - began_s:.0f} s")
    draft = Path(job.work) / "draft"
    export(trainer.draft, draft)
    write_record(draft, training_record(trainer, held, found))


STAGES = {"respond": respond, "train": train}
