"""The tools that train drafts, as the report offers them: one list, so that another tool is one more entry.

Commands are templates: $names in small letters are filled in by `training.recipes`, those in capitals are the shell's.
Every option of others was looked up in the tool's own release (which wins where later pages differ) or pages; none of
those was run.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner import __version__


@dataclass(frozen=True, slots=True)
class Trainer:
    """`engine`: whose tool it is; None: of neither. `version`: the release its options were read in. `sources`: where
    they are told."""

    name: str
    engine: str | None
    whose: str
    version: str
    sources: tuple[str, ...]
    lines: tuple[str, ...]


SPECULATORS = Trainer(
    name="speculators",
    engine="vllm",
    whose="vLLM's own",
    version="0.9.0",
    sources=(
        "https://github.com/vllm-project/speculators/blob/0014d92c61423114c63b6852f17725392277f07e/docs/user_guide/tutorials/train.md",
        "https://github.com/vllm-project/speculators/issues/906",
        "https://pypi.org/project/speculators/0.9.0/",
    ),
    lines=(
        "# speculators and vLLM may want an environment each.",
        'pip install "speculators==0.9.0"',
        "git clone --branch v0.9.0 https://github.com/vllm-project/speculators",
        "# 1. The target answers your prompts: a draft learns from the target's own text.",
        "vllm serve $target --port 8000 &",
        "until curl -sf http://localhost:8000/health; do sleep 5; done",
        "speculators regenerate-responses --endpoint http://localhost:8000/v1/chat/completions "
        "--dataset prompts.jsonl --max-tokens $max_tokens --temperature $temperatures --outfile answers.jsonl",
        "kill $!",
        "# 2. Token masks, and how often each token occurs, from which the draft's smaller vocabulary is made.",
        "speculators prepare-data --model $target --data answers.jsonl --output train-data "
        "--seq-length $sample_tokens --no-skip-token-freq",
        "# 3. A vLLM that hands out hidden states, and the training beside it on another GPU.",
        "CUDA_VISIBLE_DEVICES=0 python speculators/scripts/launch_vllm.py $target -- --port 8000 &",
        "until curl -sf http://localhost:8000/health; do sleep 5; done",
        "CUDA_VISIBLE_DEVICES=1 speculators train --verifier-name-or-path $target --speculator-type eagle3 "
        "--data-path train-data --save-path checkpoints --draft-vocab-size 32000 --epochs 5 "
        "--total-seq-len $sample_tokens --vllm-endpoint http://localhost:8000/v1 --on-missing generate",
    ),
)

SPECFORGE = Trainer(
    name="SpecForge",
    engine="sglang",
    whose="SGLang's own",
    version="0.2.0",
    sources=(
        "https://github.com/sgl-project/SpecForge/blob/2a1b4c99f0e45ec90080abd66e36cdf1cff0258e/docs/sections/basic_usage/data_preparation.md",
        "https://github.com/sgl-project/SpecForge/blob/0bb4c82e6ea79d9dc79530a509c1843df8d86e94/docs/sections/basic_usage/training.md",
        "https://pypi.org/project/specforge/0.2.0/",
    ),
    lines=(
        "git clone https://github.com/sgl-project/SpecForge && pip install -e SpecForge",
        "# The draft's shape, a JSON file as in SpecForge/configs made for the target's hidden size and vocabulary;",
        "# and what SpecForge/specforge/data/template.py calls the target's chat template.",
        ': "${DRAFT_CONFIG:?set DRAFT_CONFIG}" "${CHAT_TEMPLATE:?set CHAT_TEMPLATE}"',
        "# 1. The target answers your prompts: a draft learns from the target's own text.",
        "python -m sglang.launch_server --model-path $target --port 30000 &",
        "until curl -sf http://localhost:30000/health; do sleep 5; done",
        "python SpecForge/scripts/regenerate_train_data.py --model $target --server-address localhost:30000 "
        "--concurrency 64 --max-tokens $max_tokens --temperature $temperature "
        "--input-file-path prompts.jsonl --output-file-path answers.jsonl",
        "kill $!",
        "# 2. The target's hidden states, on disk.",
        "torchrun --nproc_per_node=1 SpecForge/scripts/prepare_hidden_states.py --strategy eagle3 "
        '--target-model-path $target --draft-model-config "$DRAFT_CONFIG" --data-path answers.jsonl '
        '--output-path hidden-states --chat-template "$CHAT_TEMPLATE" --max-length $sample_tokens '
        "--tp-size 1 --batch-size 32",
        "# 3. The training, and the draft as SGLang loads it.",
        "cat > eagle3.yaml <<END\n"
        "model:\n"
        "  target_model_path: $target_yaml\n"
        "  draft_model_config: $DRAFT_CONFIG\n"
        "data:\n"
        "  hidden_states_path: hidden-states\n"
        "  max_length: $sample_tokens\n"
        "  chat_template: $CHAT_TEMPLATE\n"
        "training:\n"
        "  strategy: eagle3\n"
        "  num_epochs: 10\n"
        "run_id: eagle3\n"
        "output_dir: outputs\n"
        "END",
        "specforge train --config eagle3.yaml",
        'specforge export --to sglang --checkpoint outputs/eagle3-latest --draft-config "$DRAFT_CONFIG" '
        "--output-dir draft",
    ),
)

OWN = Trainer(
    name="tuner draft train",
    engine=None,
    whose="tuner's own, for a Llama target small enough for a CPU",
    version=__version__,
    sources=(),
    lines=(
        "# The target answers the prompts itself, in a registered engine's environment; then an hour of training.",
        "tuner draft train --target $target --method eagle3 --prompts prompts.jsonl --answer-tokens $answer_tokens "
        "--temperatures $temperature_list --minutes 60 --out draft",
    ),
)

TRAINERS = (SPECULATORS, SPECFORGE, OWN)
