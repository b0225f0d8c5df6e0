"""Dense layers: linear, RMS norm, gated activation, rotary embedding."""

# mypy: ignore-errors
import torch.nn.functional as F


def convert_weight_packed(weight):
    """The real kernels reorder weights for AMX; these read them as they are."""
    return weight


def weight_packed_linear(x, weight, bias, is_vnni):
    return F.linear(x, weight, None if bias is None else bias.to(x.dtype))


def rmsnorm_cpu(x, weight, eps):
    return F.rms_norm(x, weight.shape, weight, eps)


def fused_add_rmsnorm_cpu(x, residual, weight, eps):
    """In place: residual += x, then x = rmsnorm(residual)."""
    residual.add_(x)
    x.copy_(rmsnorm_cpu(residual, weight, eps))


def silu_and_mul_cpu(x):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotary_embedding_cpu(positions, query, key, head_size, cos_sin_cache, is_neox):
    """cos_sin_cache: [positions, rotary_dim], cosines then sines. Neox pairs element i with i + rotary_dim / 2, the
    other style i with i + 1. Returns rotated copies in the shapes of query and key."""
    cos, sin = cos_sin_cache[positions.flatten()].unsqueeze(1).chunk(2, dim=-1)
    rotary_dim = cos_sin_cache.shape[-1]

    def rotated(x):
        heads = x.reshape(positions.numel(), -1, head_size).clone()
        part = heads[..., :rotary_dim]
        a, b = part.chunk(2, dim=-1) if is_neox else (part[..., ::2], part[..., 1::2])
        new_a, new_b = a * cos - b * sin, b * cos + a * sin
        a.copy_(new_a)
        b.copy_(new_b)
        return heads.view(x.shape)

    return rotated(query), rotated(key)


OPS = (
    convert_weight_packed,
    weight_packed_linear,
    rmsnorm_cpu,
    fused_add_rmsnorm_cpu,
    silu_and_mul_cpu,
    rotary_embedding_cpu,
)
