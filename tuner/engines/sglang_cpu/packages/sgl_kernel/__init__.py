"""SGLang's CPU kernels in plain PyTorch, under the names and signatures that SGLang 0.5.23 calls.

It calls some as functions of this module and the others as `torch.ops.sgl_kernel.<name>`. What dense Llama-like models
need is here; anything else raises NotImplementedError.
"""

# mypy: ignore-errors
import torch
from cpu_machine import refuse_gpu

refuse_gpu()

from . import attention, layers, process  # noqa: E402
from .slots import (  # noqa: E402, F401
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from .trees import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu  # noqa: E402, F401

for module in (process, layers, attention):
    for function in module.OPS:
        setattr(torch.ops.sgl_kernel, function.__name__, function)


def _missing(*_args, **_kwargs):
    raise NotImplementedError("this CPU kernel of SGLang has no stand-in here")


# Named when modules of SGLang are imported, and not called for a dense text model.
rotate_input_ids_cpu = _missing  # multi-layer EAGLE
for name in ("apply_rotary_pos_emb_cpu", "flash_attn_varlen_func", "conv3d_embed_cpu"):  # vision
    setattr(torch.ops.sgl_kernel, name, _missing)
