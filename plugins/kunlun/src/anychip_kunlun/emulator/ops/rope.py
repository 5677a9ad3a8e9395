"""Rotary embeddings of kunlun_ops. Knows positions; knows no cache of keys."""

from __future__ import annotations

import torch

from anychip_kunlun.emulator.contract import FLOATS, Contract, vendor_op
from anychip_kunlun.emulator.machine import Machine
from anychip_kunlun.emulator.ops.dense import norm

#: the fused kernel has no argument for it
QK_NORM_EPS = 1e-6


class RopeOps:
    """Ops that turn queries and keys."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @vendor_op
    def rotary_embedding(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        head_size: int,
        cos_sin_cache: torch.Tensor,
        is_neox: bool = True,
    ) -> None:
        """Turn query [tokens, heads * head_size] and key in place."""
        contract = Contract("rotary_embedding")
        contract.contiguous(positions=positions, query=query, key=key, cos_sin_cache=cos_sin_cache)
        contract.dtype((torch.int64,), positions=positions)
        contract.dtype(FLOATS, query=query)
        contract.dtype((query.dtype,), key=key, cos_sin_cache=cos_sin_cache)
        _check_rotary(contract, cos_sin_cache, head_size)
        for name, tensor in (("query", query), ("key", key)):
            contract.need(
                tensor.dim() == 2 and tensor.shape[1] % head_size == 0, f"{name} is no [tokens, heads * size]"
            )
            contract.need(tensor.shape[0] == positions.shape[0], f"{name} and positions differ in length")

        def run() -> None:
            for tensor in (query, key):
                heads = tensor.view(tensor.shape[0], -1, head_size)
                heads.copy_(turned(heads.float(), cos_sin_cache, positions, is_neox))

        self.machine.launch("rotary_embedding", (query, positions, cos_sin_cache), (query, key), run)

    @vendor_op
    def split_norm_rope_neox(
        self,
        q_emb: torch.Tensor,
        k_emb: torch.Tensor,
        v_out: torch.Tensor,
        qkv: torch.Tensor,
        rotary_pos_embedding: torch.Tensor,
        q_norm_weight: torch.Tensor,
        k_norm_weight: torch.Tensor,
        positions: torch.Tensor,
        num_tokens: int,
        max_seqlen: int,
        head_num: int,
        kv_head_num: int,
        head_dim: int,
        rotary_dim: int,
        emb_batch_size: int = 1,
    ) -> None:
        """Split qkv [tokens, (heads + 2 kv_heads) * head_dim], norm and turn q and k."""
        contract = Contract("split_norm_rope_neox")
        outputs = {"q_emb": q_emb, "k_emb": k_emb, "v_out": v_out}
        weights = {"q_norm_weight": q_norm_weight, "k_norm_weight": k_norm_weight}
        contract.contiguous(
            qkv=qkv, rotary_pos_embedding=rotary_pos_embedding, positions=positions, **outputs, **weights
        )
        contract.dtype(FLOATS, qkv=qkv)
        contract.dtype((qkv.dtype,), rotary_pos_embedding=rotary_pos_embedding, **outputs, **weights)
        contract.dtype((torch.int64,), positions=positions)
        contract.head_dim(head_dim)
        contract.need(emb_batch_size == 1, "emb_batch_size is not 1")
        contract.shape((num_tokens, (head_num + 2 * kv_head_num) * head_dim), qkv=qkv)
        contract.shape((num_tokens, head_num * head_dim), q_emb=q_emb)
        contract.shape((num_tokens, kv_head_num * head_dim), k_emb=k_emb, v_out=v_out)
        contract.shape((head_dim,), **weights)
        contract.shape((num_tokens,), positions=positions)
        contract.shape((max_seqlen, rotary_dim), rotary_pos_embedding=rotary_pos_embedding)
        _check_rotary(contract, rotary_pos_embedding, head_dim)

        def run() -> None:
            q, k, v = qkv.split([head_num * head_dim, kv_head_num * head_dim, kv_head_num * head_dim], dim=1)
            for output, part, weight in ((q_emb, q, q_norm_weight), (k_emb, k, k_norm_weight)):
                heads = norm(part.unflatten(1, (-1, head_dim)), weight, QK_NORM_EPS)
                output.copy_(turned(heads, rotary_pos_embedding, positions, True).flatten(1))
            v_out.copy_(v)

        reads = (qkv, rotary_pos_embedding, positions, *weights.values())
        self.machine.launch("split_norm_rope_neox", reads, tuple(outputs.values()), run)


def turned(heads: torch.Tensor, cache: torch.Tensor, positions: torch.Tensor, is_neox: bool) -> torch.Tensor:
    """heads [tokens, heads, head_dim] in float32, turned by cache [positions, cos and sin]."""
    cos, sin = cache[positions].float().unsqueeze(1).chunk(2, dim=-1)
    size = 2 * cos.shape[-1]
    part, rest = heads[..., :size], heads[..., size:]
    first, second = part.chunk(2, dim=-1) if is_neox else (part[..., ::2], part[..., 1::2])
    pair = (first * cos - second * sin, second * cos + first * sin)
    new = torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)
    return torch.cat((new, rest), dim=-1)


def _check_rotary(contract: Contract, cache: torch.Tensor, head_dim: int) -> None:
    size = cache.shape[-1]
    contract.need(cache.dim() == 2 and size % 2 == 0 and size <= head_dim, f"the cos/sin cache is {tuple(cache.shape)}")


__all__ = ["QK_NORM_EPS", "RopeOps", "turned"]
