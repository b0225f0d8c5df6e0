# mypy: ignore-errors
"""Turns a GGUF file into a bf16 safetensors folder and tries it: a script for the engine's Python, never imported.

    python convert_gguf.py FILE.gguf FOLDER QUESTION

Writes FOLDER/conversion.json beside the weights: library versions, parameters, dtype, and the answer to QUESTION,
greedy and through the chat template, from the saved folder loaded afresh.
"""

import json
import sys
from pathlib import Path


def convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def answer(folder: Path, question: str):
    """The text, the number of parameters, the dtype; fails where an engine's chat endpoint would fail."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        ids = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    text = tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return text, sum(p.numel() for p in model.parameters()), str(model.dtype)


def main() -> None:
    import torch
    import transformers

    gguf, folder, question = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    convert(gguf, folder)
    text, parameters, dtype = answer(folder, question)
    report = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "answer": text,
        "parameters": parameters,
        "dtype": dtype,
    }
    (folder / "conversion.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
