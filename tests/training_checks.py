"""The trainer held against plain computations, on a tiny random target: a script for an engine's Python.

argv: the trainer's folder, a folder to work in. Prints one JSON line: for each check, "" or what went wrong. Leaves
the target and one draft of each kind in the folder, for `tuner check` to look at.
"""

import json
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

SCRIPTS, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(SCRIPTS), str(Path(__file__).parent)]

import torch  # noqa: E402
import training_target  # noqa: E402
from draft_trainer.answering import AnsweringTarget, shared_prefix  # noqa: E402
from draft_trainer.answers import read_answers, read_file  # noqa: E402
from draft_trainer.corpus import Batch, Corpus  # noqa: E402
from draft_trainer.draft_model import smaller_config  # noqa: E402
from draft_trainer.export import export  # noqa: E402
from draft_trainer.heads import Draft, EagleHead, Effort  # noqa: E402
from draft_trainer.held_out import acceptance, chain_counts  # noqa: E402
from draft_trainer.job import Job  # noqa: E402
from draft_trainer.loop import KINDS, Trainer  # noqa: E402
from draft_trainer.losses import soft_cross_entropy  # noqa: E402
from draft_trainer.prompt_hash import prompt_hash  # noqa: E402
from draft_trainer.ranks import Ranks  # noqa: E402
from draft_trainer.respond import respond  # noqa: E402
from draft_trainer.sampled import loss_columns  # noqa: E402
from draft_trainer.target import Target  # noqa: E402
from draft_trainer.unroll import unroll  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb  # noqa: E402

TARGET, DATA = FOLDER / "target", FOLDER / "data"
JOB = Job(
    target=str(TARGET), method="eagle3", data=str(DATA), work=str(FOLDER / "work"),
    prompts=str(DATA / "prompts.jsonl"), engine="vllm", seed=0, steps=40, minutes=None, ranks=1,
    precision="float32", ttt=2, rows=256, rate=3e-3, loss_tokens=0, share=1.0, decay=0.8, sharpness=1.0,
    vocabulary=64, feature_norm=False, taps=(2, 4, 5), intermediate=0, heads=4, layers=2, hidden=16,
    temperatures=(0.0, 0.7), answer_tokens=24, prompt_tokens=96, own_questions=4, data_seed=0, data_minutes=None,
    batch=64, checkpoint_s=120.0, resume=False, settings={"a": [1, 2]},
)  # fmt: skip
#: Of a place: three tapped states and the last one.
WIDTH = 4 * 32
QUESTIONS = ("How are you?", "Sum 1+2.", "Say (a, b).", "Why is it so?", "Tell me of x_1.", "End: yes or no?")


def set_up() -> None:
    training_target.main(TARGET)
    DATA.mkdir()
    rows = [
        {"id": f"q/{n}", "set": "held" if n < 3 else "q", "held": n < 3, "messages": [["user", text]],
         "hash": prompt_hash([("user", text)])}
        for n, text in enumerate(f"{question} {letter}" for question in QUESTIONS for letter in "abc")
    ]  # fmt: skip
    (DATA / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    respond(JOB, 0)


def corpus() -> Corpus:
    return Corpus(DATA, False, WIDTH)


def held_out() -> Corpus:
    return Corpus(DATA, True, WIDTH)


def fresh(method: str, **changes: object) -> Draft:
    job = replace(JOB, method=method, **changes)
    return KINDS[method](job, Target(job.target), corpus())


def some_batch() -> Batch:
    """Documents of different lengths, so that some are padded."""
    return corpus().batch([0, 4, len(corpus().documents) - 1])


def close(found: torch.Tensor, wanted: torch.Tensor, within: float = 1e-4) -> None:
    worst = (found.float() - wanted.float()).abs().max().item()
    assert worst <= within * max(1.0, wanted.abs().max().item()), f"off by {worst}, values to {wanted.abs().max()}"


def check_states_are_the_models_own() -> None:
    """Of every answer: some are longer than others, some ended and left the batch before it did."""
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    for kept in (corpus(), held_out()):
        for document in kept.documents:
            with torch.no_grad():
                out = model(document.tokens[None], output_hidden_states=True)
            wanted = torch.cat([*(out.hidden_states[k][0] for k in JOB.taps), out.hidden_states[-1][0]], -1)
            close(kept.states(document)[:-1], wanted[:-1], 2**-8)
            assert not kept.states(document)[-1].any()
    prompts = [answer.prompt for answer in read_answers(DATA)]
    assert shared_prefix(prompts)[:1] == (2,), "every prompt begins with <user>"
    ended = [answer.answer[-1] == 1 for answer in read_answers(DATA)]
    assert 0 < sum(ended) < len(ended)


def check_greedy_answers_are_the_models_own() -> None:
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    greedy = [answer for answer in read_answers(DATA) if answer.temperature == 0][:3]
    for answer in greedy:
        asked = torch.tensor([answer.prompt])
        with torch.no_grad():
            ids = model.generate(asked, max_new_tokens=len(answer.answer), do_sample=False, pad_token_id=1)
        assert tuple(ids[0, len(answer.prompt) :].tolist()) == answer.answer


def check_sampled_tokens_follow_the_distribution_and_the_seed() -> None:
    logits = torch.tensor([0.0, 1.0, float("-inf"), 2.0]).repeat(20_001, 1)
    heat = torch.full((20_001,), 0.7)
    heat[-1] = 0.0
    drawn = [AnsweringTarget(replace(JOB, data_seed=seed), 0)._drawn(logits, heat) for seed in (0, 0, 1)]
    shares = torch.bincount(drawn[0][:-1], minlength=4) / 20_000
    wanted = torch.softmax(logits[0] / 0.7, -1)
    # Four standard errors of a share.
    assert ((shares - wanted).abs() <= 4 * (wanted * (1 - wanted) / 20_000).sqrt()).all(), (shares, wanted)
    assert drawn[0][-1] == 3
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def check_what_is_held_out_is_not_trained_on() -> None:
    named = {document.answer.source for document in corpus().documents}
    assert named <= {"q", "own"}, named
    assert {document.answer.source for document in held_out().documents} == {"held"}


def stepwise(head: EagleHead, batch: Batch, document: int, place: int, steps: int) -> list[torch.Tensor]:
    """One start after another, as an engine drafts: a cache of keys and values that grows by a token a step.

    Norms and rotary positions are those of transformers; attention is written out.
    """
    layer, dim, group = head.layer, head.layer.head_dim, head.layer.heads // head.layer.kv_heads
    tokens, first = batch.tokens[document], head.first_states(batch).view(*batch.tokens.shape, -1)[document]
    norm = LlamaRMSNorm(32, eps=head.target.eps)
    norm.weight = layer.post_attention_layernorm.weight
    cache: list[tuple[torch.Tensor, torch.Tensor]] = []

    def rotated(x: torch.Tensor, position: int) -> torch.Tensor:
        angle = position * head.target.theta ** -(torch.arange(0, dim, 2).float() / dim)
        angle = torch.cat([angle, angle])[None, None]
        return apply_rotary_pos_emb(x[None, :, None], x[None, :, None], angle.cos(), angle.sin())[0][0, :, 0]

    def fed(token: torch.Tensor, state: torch.Tensor, position: int) -> torch.Tensor:
        read, residual = head.joined(token[None], state[None])
        cache.append((rotated(layer.k_proj(read).view(-1, dim), position), layer.v_proj(read).view(-1, dim)))
        query = rotated(layer.q_proj(read).view(-1, dim), position)
        keys, values = (torch.stack(x).repeat_interleave(group, 1) for x in zip(*cache, strict=True))
        weights = torch.einsum("hd,thd->ht", query, keys).div(dim**0.5).softmax(-1)
        hidden = residual[0] + layer.o_proj(torch.einsum("ht,thd->hd", weights, values).flatten())
        wide = norm(hidden)
        gated = torch.nn.functional.silu(layer.gate_proj(wide)) * layer.up_proj(wide)
        return hidden + layer.down_proj(gated)

    for position in range(place + 1):
        hidden = fed(tokens[position + 1], first[position], position)
    found = [hidden]
    for step in range(1, steps):
        hidden = fed(tokens[place + 1 + step], hidden, place + step)
        found.append(hidden)
    return found


def _unrolled_as_stepwise(head: EagleHead) -> None:
    batch = some_batch()
    with torch.no_grad():
        steps = list(unroll(head, batch, 4))
        for row in (0, 5, len(batch.rows) // 2, len(batch.rows) - 20):
            document, place = divmod(int(batch.rows[row]), batch.width)
            if place + 5 >= int(batch.lengths[document]):
                continue
            for step, wanted in zip(steps, stepwise(head, batch, document, place, 4), strict=True):
                close(step.hidden[row], wanted)


def check_unrolling_eagle3_is_drafting_step_by_step() -> None:
    _unrolled_as_stepwise(fresh("eagle3"))


def check_unrolling_eagle3_with_feature_norms() -> None:
    _unrolled_as_stepwise(fresh("eagle3", feature_norm=True))


def check_unrolling_eagle1_is_drafting_step_by_step() -> None:
    _unrolled_as_stepwise(fresh("eagle"))


def check_unrolling_some_rows_is_unrolling_all_and_keeping_some() -> None:
    head, batch = fresh("eagle3"), some_batch()
    kept = torch.tensor([0, 3, 4, 11])
    with torch.no_grad():
        for all_rows, some in zip(unroll(head, batch, 3), unroll(head, batch, 3, kept), strict=True):
            wanted = all_rows.hidden if all_rows.number == 0 else all_rows.hidden[kept]
            close(some.hidden, wanted)


def check_the_saved_eagle3_is_what_llama_eagle3_computes() -> None:
    """From the file's tensors alone, as llama_eagle3.py has them: scales are in `fc`, d2t are offsets."""
    head, batch = fresh("eagle3", feature_norm=True), some_batch()
    with torch.no_grad():
        for norm in head.fc_norm:
            norm.weight.mul_(1.5)
        w = head.tensors()
        states = batch.states.flatten(0, 1)[:, :96].float()
        normed = [s * (s.pow(2).mean(-1, keepdim=True) + head.target.eps).rsqrt() for s in states.split(32, -1)]
        state = torch.cat([s * w[f"fc_norm.{k}.weight"] for k, s in enumerate(normed)], -1) @ w["fc.weight"].T
        close(head.first_states(batch), state)
        hidden = next(iter(unroll(head, batch, 1))).hidden
        last = hidden * (hidden.pow(2).mean(-1, keepdim=True) + head.target.eps).rsqrt() * w["norm.weight"]
        drafted = (last @ w["lm_head.weight"].T).argmax(-1)
        close(head.drafted(batch, 1)[:, 0], drafted + w["d2t"][drafted], 0)
    assert int(w["t2d"].sum()) == 64
    assert w["t2d"][torch.arange(64) + w["d2t"]].all()


def check_the_loss_has_the_gradient_of_its_formula() -> None:
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(130, 9, generator=draw, requires_grad=True)
    wanted, index = torch.randn(40, 9, generator=draw), torch.randint(0, 40, (130,), generator=draw)
    weight = torch.rand(130, generator=draw)
    again = logits.detach().clone().requires_grad_()
    mine = soft_cross_entropy(logits, wanted, index, weight, 0.7) * 2
    plain = (-(torch.softmax(wanted[index] * 0.7, -1) * again.log_softmax(-1)).sum(-1) * weight).sum() * 2
    mine.backward()
    plain.backward()
    close(mine, plain)
    close(logits.grad, again.grad)


def check_drawn_columns_have_the_sum_and_the_gradient_of_all() -> None:
    """Over many draws, the sum of e^logit and its gradient are on average those over all 2,000 tokens."""
    draw = torch.Generator().manual_seed(2)
    logits, likely = torch.randn(2000, generator=draw), torch.tensor([[3, 9], [9, 17]])
    whole, found = logits.exp(), torch.zeros(2000)
    for _ in range(400):
        columns = loss_columns(likely, 2000, 900, draw)
        found.index_add_(0, columns.ids, (logits[columns.ids] + columns.shift).exp() / 400)
        assert columns.ids[:3].tolist() == [3, 9, 17]
        assert len(columns.ids) == len(set(columns.ids.tolist())) == 900
    close(found.sum(), whole.sum(), 0.01)
    close(found[[3, 9, 17]], whole[[3, 9, 17]])
    close(found, whole, 0.15)
    assert loss_columns(likely, 2000, 2000, draw) is None
    assert loss_columns(likely, 2000, 0, draw) is None


def check_nothing_is_learned_where_the_answers_token_cannot_be_drafted() -> None:
    draft, batch = fresh("eagle3"), some_batch()
    _, mass = draft.vocabulary.wanted(batch, batch.rows, torch.float32)
    answers = batch.tokens.flatten()[batch.rows + 2].tolist()
    assert mass.tolist() == [float(token in draft.vocabulary.ids) for token in answers]
    assert 0 < sum(mass.tolist()) < len(answers), "some can be drafted and some cannot"


def check_chains_are_counted_by_hand() -> None:
    """Answer 5 6 7 8 9 at places 0..4, starts 0, 1 with two drafted tokens each; start 2 is too near the end."""
    tokens = torch.tensor([5, 6, 7, 8, 9, 0])
    drafted = torch.tensor([[7, 8], [8, 0], [9, 9]])
    # start 0: 7 8 right and right; start 1: 8 right, 0 for 9 wrong; start 2 would need place 5, past the length of 5.
    assert chain_counts(drafted, tokens, torch.tensor([0, 1, 2]), 5).tolist() == [[2, 2], [2, 1]]
    skipped = torch.tensor([[-1, -1], [8, 9]])
    assert chain_counts(skipped, tokens, torch.tensor([0, 1]), 5).tolist() == [[1, 1], [1, 1]]


def check_ranks_share_an_epoch_and_a_stream_goes_on_where_it_was() -> None:
    whole = corpus()
    first, second = (whole.stream(128, 0, rank, 2, 0) for rank in (0, 1))
    each = len(whole.epoch(0, 128, 0)) // 2
    assert each >= 2
    taken = [next(stream) for _ in range(each) for stream in (first, second)]
    documents = [index for batch in taken for index in batch]
    assert len(documents) == len(set(documents))
    further = [next(first) for _ in range(3)]
    later = whole.stream(128, 0, 0, 2, each)
    assert [next(later) for _ in range(3)] == further


def check_a_draft_model_drafts_as_the_whole_model_answers() -> None:
    draft, batch = fresh("draft_model"), some_batch()
    drafted = draft.drafted(batch, 3)
    document, place = divmod(int(batch.rows[8]), batch.width)
    ids = batch.tokens[document : document + 1, : place + 2]
    with torch.no_grad():
        for step in range(3):
            ids = torch.cat([ids, draft.model(ids).logits[:, -1:].argmax(-1)], 1)
            assert int(ids[0, -1]) == int(drafted[8, step])
    assert (drafted[1:8] == -1).all()
    assert smaller_config(JOB, draft.target)["num_attention_heads"] == 2


def check_a_draft_model_of_the_targets_layers_is_the_target() -> None:
    draft, batch = fresh("draft_model", hidden=32, layers=8), some_batch()
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = model.model(batch.tokens[:1])[0]
        draft.model.model.norm.weight.copy_(model.model.norm.weight)
        close(draft.model.model(batch.tokens[:1])[0], wanted)


def trained(method: str, **changes: object) -> Trainer:
    work = FOLDER / f"work-{method}-{len(list(FOLDER.glob('work-*')))}"
    work.mkdir()
    trainer = Trainer(replace(JOB, method=method, work=str(work), **changes), Ranks(0, 1, work / "none"))
    trainer.train()
    return trainer


def _learns(method: str, within: float, **changes: object) -> None:
    trainer = trained(method, steps=120, rate=5e-3, **changes)
    losses = [loss for _, loss in trainer.run.losses]
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    assert last < within * first, f"loss {first:.3f} at first and {last:.3f} at last"
    found = acceptance(trainer.draft, held_out(), 0)
    assert found["all"]["starts"] > 0
    assert found["all"]["a"][0] == found["all"]["alpha"][0]
    export(trainer.draft, FOLDER / "drafts" / method)


def check_eagle3_learns() -> None:
    _learns("eagle3", 0.8)


def check_eagle3_learns_on_some_chains() -> None:
    trainer = trained("eagle3", steps=120, rate=5e-3, share=0.5)
    losses = [loss for _, loss in trainer.run.losses]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5]), losses


def check_eagle3_learns_from_a_draw_of_its_tokens() -> None:
    sampled = trained("eagle3", steps=120, rate=5e-3, vocabulary=128, loss_tokens=100, share=0.5).draft
    sampled.job = replace(sampled.job, loss_tokens=0)
    plain = trained("eagle3", steps=120, rate=5e-3, vocabulary=128, share=0.5)
    held = held_out()
    batch, effort = held.batch(range(len(held.documents))), Effort(2, torch.Generator(), counted=False)
    with torch.no_grad():
        # Held against all tokens, it has learned about as much as one that saw all in every step.
        drawn, whole, fresh_loss = (
            float(draft.loss(batch, effort).loss) for draft in (sampled, plain.draft, fresh("eagle3", vocabulary=128))
        )
    assert drawn < fresh_loss - 0.7 * (fresh_loss - whole), (drawn, whole, fresh_loss)


def check_eagle_learns() -> None:
    _learns("eagle", 0.85)


def check_medusa_learns() -> None:
    _learns("medusa", 0.9)


def check_draft_model_learns() -> None:
    _learns("draft_model", 0.9)


def check_one_seed_makes_one_draft_and_another_seed_another() -> None:
    weights = [trained("eagle3", steps=6, seed=seed).draft.fc.weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def check_killed_and_resumed_it_is_the_unbroken_draft() -> None:
    """SIGKILL between two steps of many, with a checkpoint after each."""
    steps, work = 60, FOLDER / "killed"
    whole = trained("eagle3", steps=steps, share=0.5)
    work.mkdir()
    job = replace(JOB, steps=steps, share=0.5, work=str(work), checkpoint_s=0.0)
    child = os.fork()
    if not child:
        Trainer(job, Ranks(0, 1, work / "none")).train()
        os._exit(0)
    while not (work / "checkpoint.pt").exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it ended before it was killed"
    resumed = Trainer(replace(job, resume=True, checkpoint_s=120.0), Ranks(0, 1, work / "none"))
    assert 0 < resumed.run.step < steps
    resumed.train()
    assert (resumed.run.step, resumed.run.resumed) == (steps, 1)
    for name, value in whole.draft.state_dict().items():
        assert torch.equal(value, resumed.draft.state_dict()[name]), name


def check_a_run_of_other_settings_is_not_gone_on_with() -> None:
    first = trained("eagle3", steps=2)
    said = ""
    try:
        Trainer(replace(first.job, resume=True, settings={"a": [1, 3]}), Ranks(0, 1, FOLDER / "none"))
    except ValueError as error:
        said = str(error)
    assert "other settings (a)" in said


def check_answers_already_there_are_not_made_again() -> None:
    """After a torn line, and after states that are missing: what is whole stays as it is, the rest is made again."""
    lines, states = DATA / "answers-0.jsonl", DATA / "states-0.bin"
    before, kept = lines.read_bytes(), states.read_bytes()
    whole = before.splitlines()
    lengths = [answer.length for answer in read_file(lines)]
    half = sum(lengths[: len(whole) // 2]) * WIDTH * 2
    for torn_lines, torn_states, unhurt in (
        (before[:-40], kept, len(whole) - 1),
        (before, kept[:half], len(whole) // 2),
    ):
        lines.write_bytes(torn_lines)
        states.write_bytes(torn_states)
        respond(JOB, 0)
        again = lines.read_bytes().splitlines()
        assert again[:unhurt] == whole[:unhurt]
        assert len(again) == len(whole)
        assert len(states.read_bytes()) == sum(answer.length for answer in read_file(lines)) * WIDTH * 2
    lines.write_bytes(before)
    states.write_bytes(kept)


def check_eagle1_for_sglang_has_a_bias_of_zero() -> None:
    draft = fresh("eagle", engine="sglang")
    assert draft.config()["architectures"] == ["LlamaForCausalLMEagle"]
    assert not draft.tensors()["fc.bias"].any()


def check_effort_is_counted_only_where_asked() -> None:
    draft, batch = fresh("eagle3"), some_batch()
    effort = Effort(2, torch.Generator(), counted=False)
    assert draft.loss(batch, effort).hits == ()
    counted = draft.loss(batch, replace(effort, counted=True))
    tried = [tried for tried, _ in counted.hits]
    # One place a document has no second drafted token before its end.
    assert tried == [len(batch.rows), len(batch.rows) - 3]


def main() -> None:
    torch.set_num_threads(1)
    set_up()
    found = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            began_s = time.monotonic()
            try:
                check()
                found[name.removeprefix("check_")] = ""
            except Exception:
                found[name.removeprefix("check_")] = traceback.format_exc()
            print(name, f"{time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
