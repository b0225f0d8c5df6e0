"""The KV cache's writes, and attention over it: one token a request, or several with a causal or a tree mask.

Caches are [slots, kv_heads, head_dim]; req_to_token[row] lists the slots of a request in order.
"""

# mypy: ignore-errors
import torch
import torch.nn.functional as F


def store_cache_cpu(k, v, k_cache, v_cache, slots, row_dim):
    k_cache.view(-1, row_dim)[slots] = k.reshape(-1, row_dim)
    v_cache.view(-1, row_dim)[slots] = v.reshape(-1, row_dim)


def decode_attention_cpu(
    q, k_cache, v_cache, k_scale, v_scale, out, k, v, slots, attn_logits,
    req_to_token, rows, seq_lens, scale, logit_cap, is_cross_attn, window, encoder_lens, sinks,
):  # fmt: skip
    """One query a request over its first seq_lens tokens; the new k and v, if given, are stored first. Fills `out`."""
    refuse_variants(logit_cap, is_cross_attn, window, sinks)
    if k is not None:
        k_cache[slots] = k.view(-1, *k_cache.shape[1:])
        v_cache[slots] = v.view(-1, *v_cache.shape[1:])
    for i, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        kv = req_to_token[row, :length]
        attend(q[i : i + 1], k_cache[kv], v_cache[kv], out[i : i + 1], scale)


def extend_attention_cpu(
    q, k, v, out, k_cache, v_cache, k_scale, v_scale,
    req_to_token, rows, seq_lens, new_lens, new_starts, max_new_len,
    scale, logit_cap, is_cross_attn, window, encoder_lens, sinks, tree_mask, is_causal,
):  # fmt: skip
    """The last new_lens of seq_lens tokens of each request attend to all of it. SGLang has stored their k and v.

    tree_mask: one [new, new] block a request, in one row, which says what new tokens see of each other; all see the
    tokens before them.
    """
    refuse_variants(logit_cap, is_cross_attn, window, sinks)
    lengths = zip(rows.tolist(), seq_lens.tolist(), new_lens.tolist(), new_starts.tolist(), strict=True)
    for i, (row, total, new, start) in enumerate(lengths):
        kv = req_to_token[row, :total]
        mask = torch.ones(new, total, dtype=torch.bool)
        if tree_mask is not None:
            mask[:, total - new :] = tree_mask.view(len(rows), new, new)[i].bool()
        elif is_causal:
            mask.tril_(total - new)
        part = slice(start, start + new)
        attend(q[part], k_cache[kv], v_cache[kv], out[part], scale, attn_mask=mask)


def attend(q, k, v, out, scale, **mask):
    """q, out: [n, heads, dim]; k, v: [m, kv_heads, dim]."""
    q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
    attended = F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True, **mask)
    out.copy_(attended[0].transpose(0, 1))


def refuse_variants(logit_cap, is_cross_attn, window, sinks):
    if logit_cap or is_cross_attn or window > 0 or sinks is not None:
        raise NotImplementedError("CPU kernels in plain PyTorch have causal attention only: no caps, windows or sinks")


OPS = (store_cache_cpu, decode_attention_cpu, extend_attention_cpu)
