"""Writes a tiny random Llama with a tokenizer of 128 tokens: a script for an engine's Python. argv: FOLDER."""

import sys
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,?!'\"()[]{}+-*/=<>:;_\n"
TEMPLATE = (
    "{% for message in messages %}<user>{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<model>{% endif %}"
)


def main(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<unk>", "<end>", "<user>", "<model>", *LETTERS]
    words += [f"<{index}>" for index in range(128 - len(words))]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>",
        additional_special_tokens=["<user>", "<model>"],
    )  # fmt: skip
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=128, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=1, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, initializer_range=0.4,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
