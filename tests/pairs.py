"""Pairs of target and draft for preflight: folders written from a few lines of YAML, weights as headers and zeros.

Shapes are worked out here by hand from the layouts of the formats, apart from the product's own tables.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tuner.engines import engine_for
from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment
from tuner.engines.preflight.asked import Demand
from tuner.engines.preflight.check import check
from tuner.engines.preflight.finding import Finding
from tuner.spec.speculation import SpecConfig, Tree

DATA = Path(__file__).parent / "data" / "pairs"
SIZES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "BOOL": 1, "I32": 4, "F8_E4M3": 1}
VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}
Shapes = dict[str, tuple[str, list[int]]]


@dataclass(frozen=True)
class Pair:
    """One document of the data files."""

    name: str
    file: str
    data: Mapping[str, Any]

    @property
    def is_valid(self) -> bool:
        return self.data["expect"] == "ok" or "ok" in self.data["expect"]


def pairs() -> Iterator[Pair]:
    base = (DATA / "base.yaml").read_text(encoding="utf-8")
    for path in sorted(set(DATA.glob("*.yaml")) - {DATA / "base.yaml"}):
        for item in yaml.safe_load(base + path.read_text(encoding="utf-8"))["pairs"]:
            yield Pair(item["name"], path.stem, item)


def look(pair: Pair, folder: Path) -> tuple[Finding, ...]:
    """Write the pair's folders and look at it as a launch would."""
    data = pair.data
    target = write_model(folder / data.get("target_folder", "target"), data["target"])
    draft = write_model(folder / data.get("draft_folder", "draft"), data["draft"]) if data.get("draft") else None
    engine = data.get("engine", "vllm")
    version = data.get("version", VERSIONS[engine])
    corrections = tuple(data.get("corrections", ()))
    environment = Environment(engine, engine, version, None, None, data.get("device", "gpu"), corrections)
    options = LaunchOptions(
        max_running_requests=data.get("running", 8),
        max_model_len=data.get("max_model_len"),
        tensor_parallel=data.get("tp", 1),
        args=tuple(data.get("args", ())),
        env=tuple(data.get("env", {}).items()),
    )
    spec = SpecConfig(
        data["method"],
        n=0 if "tree" in data else data.get("n", 3),
        draft=draft,
        tree=Tree(*data["tree"]) if "tree" in data else None,
        options=tuple(data.get("options", {}).items()),
    )
    demand = dict(data.get("demand", {}))
    demand["temperatures"] = tuple(demand.get("temperatures", (0.0,)))
    return check(engine_for(environment), target, spec, options, Demand(**demand), data.get("kv_tokens"))


def write_model(folder: Path, model: Mapping[str, Any]) -> str:
    """A saved model: config, tokenizer if one is asked for, weights if some are."""
    folder.mkdir(parents=True)
    config = model["config"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if "tokens" in model:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer(**model["tokens"])), encoding="utf-8")
    if "weights" in model:
        write_weights(folder, weights(config, **model["weights"]), **model.get("write", {}))
    for name in model.get("files", ()):
        (folder / name).write_bytes(b"")
    return str(folder)


def tokenizer(count: int, changed: Mapping[int, str] | None = None, special: tuple[int, ...] = ()) -> dict[str, Any]:
    """`count` tokens t0, t1, ...; `changed` renames some; `special` are marked as control tokens."""
    vocab = {f"t{i}": i for i in range(count)}
    for i, token in (changed or {}).items():
        del vocab[f"t{i}"]
        vocab[token] = i
    spelled = {i: token for token, i in vocab.items()}
    added = [{"id": i, "content": spelled[i], "special": True} for i in special]
    return {"model": {"type": "BPE", "vocab": vocab}, "added_tokens": added}


def weights(
    config: Mapping[str, Any],
    kind: str,
    drop: tuple[str, ...] = (),
    add: Mapping[str, Any] | None = None,
    d2t: list[int] | None = None,
    t2d: int | None = None,
    dtype: str = "BF16",
    layer: str = "midlayer",
    reads: int | None = None,
    embedding: bool = False,
    heads: int = 0,
    width: int | None = None,
    vocabulary: int | None = None,
) -> tuple[Shapes, dict[str, bytes]]:
    """(dtype and shape of every tensor, bytes of those with values). `reads`: the target's width, if another."""
    text = dict(config.get("transformer_layer_config", config))
    text |= {"hidden_size": width} if width else {}
    text |= {"vocab_size": vocabulary} if vocabulary else {}
    found = KINDS[kind](text, config, layer=layer, reads=reads or text["hidden_size"], heads=heads)
    shapes: Shapes = {name: (dtype, shape) for name, shape in found.items()}
    values: dict[str, bytes] = {}
    if embedding:
        shapes["embed_tokens.weight"] = (dtype, [text["vocab_size"], text["hidden_size"]])
    if d2t is not None:
        shapes["d2t"] = ("I64", [len(d2t)])
        values["d2t"] = struct.pack(f"<{len(d2t)}q", *d2t)
    if t2d is not None:
        shapes["t2d"] = ("BOOL", [text["vocab_size"]])
        values["t2d"] = b"\x01" * t2d + b"\x00" * (text["vocab_size"] - t2d)
    for name, (kind_of_number, shape) in (add or {}).items():
        shapes[name] = (kind_of_number, shape)
    return {name: found for name, found in shapes.items() if name not in drop}, values


def _layer(c: Mapping[str, Any], prefix: str, reads: int) -> dict[str, list[int]]:
    hidden, wide = c["hidden_size"], c["intermediate_size"]
    size = c.get("head_dim", hidden // c["num_attention_heads"])
    queries, keys = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    return {
        f"{prefix}self_attn.q_proj.weight": [queries, reads],
        f"{prefix}self_attn.k_proj.weight": [keys, reads],
        f"{prefix}self_attn.v_proj.weight": [keys, reads],
        f"{prefix}self_attn.o_proj.weight": [hidden, queries],
        f"{prefix}mlp.gate_proj.weight": [wide, hidden],
        f"{prefix}mlp.up_proj.weight": [wide, hidden],
        f"{prefix}mlp.down_proj.weight": [hidden, wide],
        f"{prefix}post_attention_layernorm.weight": [hidden],
    }


def _eagle3(
    c: Mapping[str, Any], config: Mapping[str, Any], *, layer: str, reads: int, heads: int
) -> dict[str, list[int]]:
    """fc [H, 3 * states], q, k and v over [embedding, state], a reduced output matrix."""
    hidden = c["hidden_size"]
    found = _layer(c, f"{layer}.", 2 * hidden)
    for norm in ("input_layernorm", "hidden_norm"):
        found[f"{layer}.{norm}.weight"] = [hidden]
    drafted = config.get("draft_vocab_size") or c["vocab_size"]
    return found | {"fc.weight": [hidden, 3 * reads], "norm.weight": [hidden], "lm_head.weight": [drafted, hidden]}


def _eagle(
    c: Mapping[str, Any], config: Mapping[str, Any], *, layer: str, reads: int, heads: int
) -> dict[str, list[int]]:
    """fc [H, 2H], one layer without a norm before it; all else is the target's."""
    return _layer(c, "layers.0.", c["hidden_size"]) | {"fc.weight": [c["hidden_size"], 2 * reads]}


def _medusa(
    c: Mapping[str, Any], config: Mapping[str, Any], *, layer: str, reads: int, heads: int
) -> dict[str, list[int]]:
    """Blocks of one layer and an output matrix a head, as vLLM names them."""
    hidden = c["hidden_size"]
    blocks = {f"blocks.{head}.layers.0.weight": [hidden, hidden] for head in range(heads)}
    return blocks | {f"lm_heads.{head}.weight": [c["vocab_size"], hidden] for head in range(heads)}


def _old_medusa(
    c: Mapping[str, Any], config: Mapping[str, Any], *, layer: str, reads: int, heads: int
) -> dict[str, list[int]]:
    """FasterDecoding's names: {head}.0.linear and {head}.1."""
    hidden = c["hidden_size"]
    found: dict[str, list[int]] = {}
    for head in range(heads):
        found |= {f"{head}.0.linear.weight": [hidden, hidden], f"{head}.0.linear.bias": [hidden]}
        found[f"{head}.1.weight"] = [c["vocab_size"], hidden]
    return found


def _model(
    c: Mapping[str, Any], config: Mapping[str, Any], *, layer: str, reads: int, heads: int
) -> dict[str, list[int]]:
    hidden = c["hidden_size"]
    found = {"model.embed_tokens.weight": [c["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for i in range(c["num_hidden_layers"]):
        found |= _layer(c, f"model.layers.{i}.", hidden)
        found[f"model.layers.{i}.input_layernorm.weight"] = [hidden]
    if not c.get("tie_word_embeddings"):
        found["lm_head.weight"] = [c["vocab_size"], hidden]
    return found


KINDS = {"eagle3": _eagle3, "eagle": _eagle, "medusa": _medusa, "old_medusa": _old_medusa, "model": _model}


def write_weights(
    folder: Path,
    tensors: tuple[Shapes, dict[str, bytes]],
    shards: int = 1,
    lost_shard: bool = False,
    headers_only: bool = False,
) -> None:
    """One file, or several with an index; zeros for every tensor without values."""
    shapes, values = tensors
    names = sorted(shapes)
    if shards == 1:
        write_file(folder / "model.safetensors", {name: shapes[name] for name in names}, values, headers_only)
        return
    index: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        own = names[i::shards]
        index |= dict.fromkeys(own, file)
        if not (lost_shard and i == shards - 1):
            write_file(folder / file, {name: shapes[name] for name in own}, values, headers_only)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def write_file(path: Path, shapes: Shapes, values: Mapping[str, bytes], headers_only: bool = False) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, (dtype, shape) in shapes.items():
        count = 1
        for size in shape:
            count *= size
        body = values.get(name, bytes(count * SIZES[dtype]))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(body)]}
        data += body
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + (b"" if headers_only else bytes(data)))
