"""Which KV slots belong to which request while tokens are drafted, verified and kept."""

# mypy: ignore-errors
import ctypes

import torch


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt, src):
    """Row src[i] to row tgt[i] in every layer's buffer. Pointers and strides are bytes; all rows are read first."""
    for ptr, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(ptr + slot * size, size) for slot in src.tolist()]
        for slot, row in zip(tgt.tolist(), rows, strict=True):
            ctypes.memmove(ptr + slot * size, row, size)


def assign_req_to_token_pool_cpu(rows, req_to_token, start, end, slots, pool_len):
    """req_to_token[row, start:end] of each request = the next of `slots`."""
    done = 0
    for row, a, b in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[row, a:b] = slots[done : done + b - a]
        done += b - a


def assign_extend_cache_locs_cpu(rows, req_to_token, start, end, out, pool_len):
    """The inverse: `out` = req_to_token[row, start:end] of each request, one after the other."""
    done = 0
    for row, a, b in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        out[done : done + b - a] = req_to_token[row, a:b]
        done += b - a


def assign_draft_cache_locs_contiguous_cpu(rows, req_to_token, seq_lens, out, pool_len, topk, num_steps):
    """`out` = the topk * num_steps slots that follow each request's tokens."""
    assign_extend_cache_locs_cpu(rows, req_to_token, seq_lens, seq_lens + topk * num_steps, out, pool_len)


def build_draft_decode_metadata_cpu(req_to_token, rows, seq_lens, topk, num_steps, pool_len):
    """One row a branch: the request's slots, then the num_steps slots of that branch."""
    table = req_to_token[rows].repeat_interleave(topk, dim=0)
    for i, length in enumerate(seq_lens.tolist()):
        branches = req_to_token[rows[i], length : length + topk * num_steps].view(topk, num_steps)
        table[i * topk : (i + 1) * topk, length : length + num_steps] = branches
    return table


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, stride):
    """The last accepted token of each request; its tokens start at i * stride."""
    last = torch.arange(len(accept_lens)) * stride + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, out):
    """The slots of accepted nodes, in order; -1 in accept_index is no node."""
    kept = out_cache_loc[accept_index[accept_index >= 0].long()]
    out[: len(kept)] = kept
