"""Runs in SGLang's environment on CPU: each kernel of tuner's against plain PyTorch. Prints {kernel: "" or why not}."""

import itertools
import json
import random
import traceback

import sgl_kernel
import torch
from sgl_kernel.speculative import reconstruct_indices_from_tree_mask

ops = torch.ops.sgl_kernel
close = torch.testing.assert_close


def softmax_attention(q, k, v, scale, allowed):
    """q: [n, heads, dim]; k, v: [m, kv_heads, dim]; allowed: [n, m]. One head and one query at a time."""
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for i in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = (k[:, h // group] @ q[i, h]) * scale
            weights = torch.softmax(scores.masked_fill(~allowed[i], float("-inf")), dim=0)
            out[i, h] = weights @ v[:, h // group]
    return out


def cache_of(lengths, kv_heads=2, dim=8, slots=64):
    """A cache in which each request's tokens lie in slots of their own, in no order, and the table that tells them."""
    free = torch.randperm(slots)
    table = torch.zeros(len(lengths) + 2, 32, dtype=torch.int64)
    rows = torch.randperm(len(lengths) + 2)[: len(lengths)]
    for row, length in zip(rows.tolist(), lengths, strict=True):
        table[row, :length], free = free[:length], free[length:]
    return torch.randn(slots, kv_heads, dim), torch.randn(slots, kv_heads, dim), table, rows, free


def init_cpu_threads_env():
    ops.init_cpu_threads_env("0,1")
    assert torch.get_num_threads() == 2
    ops.init_cpu_threads_env("0")
    assert torch.get_num_threads() == 1


def initialize():
    ops.initialize(1, 0)
    try:
        ops.initialize(2, 0)
    except NotImplementedError:
        return
    raise AssertionError("two ranks were not refused")


def convert_weight_packed():
    weight = torch.randn(3, 4)
    assert ops.convert_weight_packed(weight) is weight


def weight_packed_linear():
    x, weight, bias = torch.randn(5, 4), torch.randn(3, 4), torch.randn(3)
    wanted = torch.stack([torch.stack([(row * w).sum() for w in weight]) for row in x])
    close(ops.weight_packed_linear(x, weight, None, True), wanted)
    close(ops.weight_packed_linear(x, weight, bias, True), wanted + bias)
    low = ops.weight_packed_linear(x.bfloat16(), weight.bfloat16(), bias, True)
    assert low.dtype == torch.bfloat16
    close(low.float(), wanted + bias, atol=0.1, rtol=0.05)


def rmsnorm_cpu():
    x, weight = torch.randn(5, 16), torch.rand(16)
    close(ops.rmsnorm_cpu(x, weight, 1e-5), x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight)


def fused_add_rmsnorm_cpu():
    x, residual, weight = torch.randn(5, 16), torch.randn(5, 16), torch.rand(16)
    total = x + residual
    wanted = total / (total.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    ops.fused_add_rmsnorm_cpu(x, residual, weight, 1e-5)
    close(residual, total)
    close(x, wanted)


def silu_and_mul_cpu():
    x = torch.randn(5, 12)
    gate, up = x[:, :6], x[:, 6:]
    close(ops.silu_and_mul_cpu(x), gate / (1 + torch.exp(-gate)) * up)


def rotary_embedding_cpu():
    """A pair (a, b) as the complex number a + ib, turned by its angle."""
    dim, tokens = 8, 5
    angles = torch.arange(16).float()[:, None] * (1 / 10000 ** (torch.arange(0, dim, 2) / dim))[None]
    cache = torch.cat([angles.cos(), angles.sin()], dim=-1)
    positions = torch.tensor([0, 3, 3, 15, 7])
    query, key = torch.randn(tokens, 3 * dim), torch.randn(tokens, 1 * dim)
    for neox in (True, False):
        turned = ops.rotary_embedding_cpu(positions, query, key, dim, cache, neox)
        for x, got in zip((query, key), turned, strict=True):
            heads = x.view(tokens, -1, dim)
            first, second = (
                (heads[..., : dim // 2], heads[..., dim // 2 :]) if neox else (heads[..., ::2], heads[..., 1::2])
            )
            turn = torch.polar(torch.ones(tokens, dim // 2), angles[positions])[:, None]
            wanted = torch.complex(first, second) * turn
            parts = (wanted.real, wanted.imag)
            wanted = torch.cat(parts, -1) if neox else torch.stack(parts, -1).flatten(-2)
            close(got, wanted.reshape(x.shape))


def rotary_embedding_partial():
    """Only the first rotary_dim elements of a head turn."""
    cache = torch.cat([torch.zeros(4, 2), torch.ones(4, 2)], dim=-1)  # a quarter turn: (a, b) -> (-b, a)
    query = torch.tensor([[1.0, 2, 3, 4, 5, 6]])
    got, _ = ops.rotary_embedding_cpu(torch.tensor([2]), query, query.clone(), 6, cache, True)
    close(got, torch.tensor([[-3.0, -4, 1, 2, 5, 6]]))


def store_cache_cpu():
    k, v = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    k_cache, v_cache = torch.zeros(10, 2, 4), torch.zeros(10, 2, 4)
    slots = torch.tensor([7, 0, 4])
    ops.store_cache_cpu(k, v, k_cache, v_cache, slots, 8)
    for i, slot in enumerate(slots.tolist()):
        close(k_cache[slot], k[i])
        close(v_cache[slot], v[i])
    assert k_cache[[1, 2, 3, 5, 6, 8, 9]].abs().sum() == 0


def decode_attention_cpu():
    lengths = [5, 1, 17]
    k_cache, v_cache, table, rows, _ = cache_of(lengths)
    q, out = torch.randn(3, 4, 8), torch.empty(3, 4, 8)
    new_k, new_v = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    slots = torch.stack([table[row, n - 1] for row, n in zip(rows.tolist(), lengths, strict=True)])
    ops.decode_attention_cpu(
        q, k_cache, v_cache, 1.0, 1.0, out, new_k, new_v, slots, None, table, rows, torch.tensor(lengths), 0.3,
        0.0, False, -1, None, None,
    )  # fmt: skip
    for i, (row, n) in enumerate(zip(rows.tolist(), lengths, strict=True)):
        kv = table[row, :n]
        close(k_cache[kv[-1]], new_k[i])
        close(out[i : i + 1], softmax_attention(q[i : i + 1], k_cache[kv], v_cache[kv], 0.3, torch.ones(1, n).bool()))


def extend(tree_mask, allowed, is_causal=True, lengths=(9, 4), new=(3, 4)):
    k_cache, v_cache, table, rows, _ = cache_of(lengths)
    starts = [0, new[0]]
    q, out = torch.randn(sum(new), 4, 8), torch.empty(sum(new), 4, 8)
    ops.extend_attention_cpu(
        q, None, None, out, k_cache, v_cache, 1.0, 1.0, table, rows, torch.tensor(lengths), torch.tensor(new),
        torch.tensor(starts), max(new), 0.3, 0.0, False, -1, None, None, tree_mask, is_causal,
    )  # fmt: skip
    for i, (row, total) in enumerate(zip(rows.tolist(), lengths, strict=True)):
        kv, part = table[row, :total], slice(starts[i], starts[i] + new[i])
        close(out[part], softmax_attention(q[part], k_cache[kv], v_cache[kv], 0.3, allowed(i, total, new[i])))


def extend_attention_cpu():
    """Causal: new token j of n sees all that came before and j more."""
    extend(None, lambda i, total, n: torch.arange(total)[None] <= torch.arange(total - n, total)[:, None])
    extend(None, lambda i, total, n: torch.ones(n, total).bool(), is_causal=False)


def extend_attention_tree():
    """Node 3 of 0 -> 1 -> 3, 0 -> 2 sees the prefix, 0, 1 and itself, and not 2."""
    block = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]])
    blocks = torch.stack([block, torch.tril(torch.ones(4, 4)).long()])

    def allowed(i, total, n):
        return torch.cat([torch.ones(n, total - n), blocks[i]], dim=1).bool()

    extend(blocks.flatten().bool(), allowed, lengths=(9, 4), new=(4, 4))


def attention_variants():
    for cap, cross, window, sinks in ((30.0, False, -1, None), (0.0, True, -1, None), (0.0, False, 4, None)):
        try:
            sgl_kernel.attention.refuse_variants(cap, cross, window, sinks)
        except NotImplementedError:
            continue
        raise AssertionError(f"not refused: {cap}, {cross}, {window}, {sinks}")


def copy_all_layer_kv_cache_cpu():
    """Rows 5, 2 to 2, 7 in two layers of different width: row 2 is read before it is overwritten."""
    layers = [torch.randn(10, 6), torch.randn(10, 2).bfloat16()]
    before = [layer.clone() for layer in layers]
    pointers = torch.tensor([layer.data_ptr() for layer in layers])
    strides = torch.tensor([layer.stride(0) * layer.element_size() for layer in layers])
    sgl_kernel.copy_all_layer_kv_cache_cpu(pointers, strides, torch.tensor([2, 7]), torch.tensor([5, 2]))
    for layer, old in zip(layers, before, strict=True):
        wanted = old.clone()
        wanted[2], wanted[7] = old[5], old[2]
        close(layer, wanted)


def assign_req_to_token_pool_cpu():
    table = torch.zeros(4, 8, dtype=torch.int64)
    rows, start, end = torch.tensor([2, 0]), torch.tensor([1, 3]), torch.tensor([4, 5])
    sgl_kernel.assign_req_to_token_pool_cpu(rows, table, start, end, torch.tensor([10, 11, 12, 13, 14]), 8)
    assert table.tolist() == [[0, 0, 0, 13, 14, 0, 0, 0], [0] * 8, [0, 10, 11, 12, 0, 0, 0, 0], [0] * 8]


def assign_extend_cache_locs_cpu():
    table, out = torch.arange(32).view(4, 8), torch.zeros(5, dtype=torch.int64)
    sgl_kernel.assign_extend_cache_locs_cpu(
        torch.tensor([2, 0]), table, torch.tensor([1, 3]), torch.tensor([4, 5]), out, 8
    )
    assert out.tolist() == [17, 18, 19, 3, 4]


def assign_draft_cache_locs_contiguous_cpu():
    """topk 2, 2 steps: 4 slots after 3 tokens in row 1, after 1 token in row 0."""
    table, out = torch.arange(16).view(2, 8), torch.zeros(8, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(torch.tensor([1, 0]), table, torch.tensor([3, 1]), out, 8, 2, 2)
    assert out.tolist() == [11, 12, 13, 14, 1, 2, 3, 4]


def build_draft_decode_metadata_cpu():
    """topk 2, 2 steps, 3 tokens: both branches see tokens 0-2, then slots 3, 4 or slots 5, 6."""
    table = torch.arange(16).view(2, 8)
    got = sgl_kernel.build_draft_decode_metadata_cpu(table, torch.tensor([1]), torch.tensor([3]), 2, 2, 8)
    assert got[:, :5].tolist() == [[8, 9, 10, 11, 12], [8, 9, 10, 13, 14]]
    assert table.tolist() == torch.arange(16).view(2, 8).tolist()


def fill_bonus_tokens_cpu():
    tokens, bonus = torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.zeros(2, dtype=torch.int64)
    sgl_kernel.fill_bonus_tokens_cpu(tokens, torch.tensor([3, 1]), bonus, 3)
    assert bonus.tolist() == [7, 8]


def fill_accept_out_cache_loc_cpu():
    out = torch.zeros(4, dtype=torch.int64)
    sgl_kernel.fill_accept_out_cache_loc_cpu(
        torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32), torch.tensor([10, 11, 12, 13]), out
    )
    assert out.tolist() == [10, 12, 13, 0]


def built(parent_list, selected, lengths, topk, depth):
    bs, n = len(lengths), len(selected[0]) + 1
    mask, positions = torch.zeros(bs * n * n, dtype=torch.bool), torch.zeros(bs * n, dtype=torch.int64)
    index, child, sibling = (torch.full((bs, n), -1) for _ in range(3))
    sgl_kernel.build_tree_kernel_efficient_cpu(
        torch.tensor(parent_list), torch.tensor(selected), torch.tensor(lengths), mask, positions, index, child,
        sibling, topk, depth, n, 1,
    )  # fmt: skip
    return mask.view(bs, n, n), positions.view(bs, n), index, child, sibling


def build_tree_kernel_efficient_cpu():
    """topk 2: picks 0, 1 are the root's children; 2, 3 come from the branch of parent_list[1] (pick 1), so nodes are
    0 root; 1 = pick 0; 2 = pick 1; 3 = pick 2 under pick 1; 4 = pick 3 under pick 1."""
    mask, positions, index, child, sibling = built([[-1, 1, 0]], [[0, 1, 2, 3]], [10], 2, 2)
    assert mask[0].int().tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 1, 0, 1],
    ]  # fmt: skip
    assert positions.tolist() == [[10, 11, 11, 12, 12]]
    assert index.tolist() == [[0, 1, 2, 3, 4]]
    assert child.tolist() == [[1, -1, 3, -1, -1]]
    assert sibling.tolist() == [[-1, 2, -1, 4, -1]]


def greedy_by_hand(children, token, target, most):
    """The longest path from the root along which every node is what the target chose at its parent."""
    path = [0]
    while len(path) < most:
        following = [c for c in children[path[-1]] if token[c] == target[path[-1]]]
        if not following:
            break
        path.append(min(following))
    return path


def verify_tree_greedy_cpu():
    """Random trees and target choices of few tokens, two requests at a time, against a walk over lists of children."""
    lengths = set()
    for seed in range(200):
        rng = random.Random(seed)
        n, most, bs = 7, 4, 2
        parent = [[None, *(rng.randrange(i) for i in range(1, n))] for _ in range(bs)]
        children = [[[i for i in range(1, n) if p[i] == node] for node in range(n)] for p in parent]
        token = [[rng.randrange(3) for _ in range(n)] for _ in range(bs)]
        target = [[rng.randrange(3) for _ in range(n)] for _ in range(bs)]
        index = torch.arange(bs * n).view(bs, n)
        child = torch.tensor([[c[0] if c else -1 for c in rows] for rows in children])
        sibling = torch.full((bs, n), -1)
        for b in range(bs):
            for row in children[b]:
                for one, following in itertools.pairwise(row):
                    sibling[b, one] = following
        predicts = torch.zeros(bs * n, dtype=torch.int32)
        accepted, counts = torch.full((bs, most), -1, dtype=torch.int32), torch.zeros(bs, dtype=torch.int32)
        sgl_kernel.verify_tree_greedy_cpu(
            predicts, accepted, counts, torch.tensor(token), index, child, sibling, torch.tensor(target)
        )
        for b in range(bs):
            path = greedy_by_hand(children[b], token[b], target[b], most)
            lengths.add(len(path))
            assert accepted[b].tolist() == [b * n + node for node in path] + [-1] * (most - len(path))
            assert counts[b] == len(path) - 1
            assert [predicts[b * n + node] for node in path] == [target[b][node] for node in path]
    assert lengths == {1, 2, 3, 4}


def reconstruct_indices():
    """The tree 0 -> 1 -> 3, 0 -> 2, after 10 tokens, from its mask alone."""
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]).bool().flatten()
    positions = torch.zeros(4, dtype=torch.int64)
    index, child, sibling = (torch.full((1, 4), 9) for _ in range(3))
    reconstruct_indices_from_tree_mask(mask, torch.tensor([10]), positions, index, child, sibling, 1, 4)
    assert positions.tolist() == [10, 11, 11, 12]
    assert index.tolist() == [[0, 1, 2, 3]]
    assert child.tolist() == [[1, 3, -1, -1]]
    assert sibling.tolist() == [[-1, 2, -1, -1]]


def missing_kernels():
    for function in (sgl_kernel.rotate_input_ids_cpu, ops.conv3d_embed_cpu, ops.flash_attn_varlen_func):
        try:
            function(torch.zeros(1))
        except NotImplementedError:
            continue
        raise AssertionError(f"{function} did something")


CHECKS = (
    init_cpu_threads_env, initialize, convert_weight_packed, weight_packed_linear, rmsnorm_cpu, fused_add_rmsnorm_cpu,
    silu_and_mul_cpu, rotary_embedding_cpu, rotary_embedding_partial, store_cache_cpu, decode_attention_cpu,
    extend_attention_cpu, extend_attention_tree, attention_variants, copy_all_layer_kv_cache_cpu,
    assign_req_to_token_pool_cpu, assign_extend_cache_locs_cpu, assign_draft_cache_locs_contiguous_cpu,
    build_draft_decode_metadata_cpu, fill_bonus_tokens_cpu, fill_accept_out_cache_loc_cpu,
    build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu, reconstruct_indices, missing_kernels,
)  # fmt: skip


def result(check):
    torch.manual_seed(0)
    try:
        check()
    except Exception:
        return traceback.format_exc(limit=-2)
    return ""


if __name__ == "__main__":
    print(json.dumps({check.__name__: result(check) for check in CHECKS}))
