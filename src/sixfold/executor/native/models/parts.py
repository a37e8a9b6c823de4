"""What the layers of all families are made of: packed weights, and the operations that they become."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sixfold.executor.native.kernels import PackedMatrix, Program, RopeTable

__all__ = ["Attention", "Dense", "Experts", "Layer"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """x += post_norm(W_o attention(rope(q_norm(W_q norm(x) + bias)), ...) + proj_bias); None: there is no such part."""

    norm: Float32 | None
    qkv: PackedMatrix
    bias: Float32 | None
    q_norm: Float32 | None
    """[head_dim]: of each head; [n_heads * head_dim]: of the whole projection."""
    k_norm: Float32 | None
    rope: RopeTable
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    window: int
    softcap: float
    proj: PackedMatrix
    proj_bias: Float32 | None
    post_norm: Float32 | None
    eps: float

    def record(self, p: Program, layer: int) -> None:
        p.norm_qkv_rope_write(
            layer,
            self.norm,
            self.qkv,
            self.n_heads,
            self.n_kv_heads,
            self.head_dim,
            self.rope,
            self.eps,
            bias=self.bias,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
        )
        p.attention(layer, self.scale, window=self.window, softcap=self.softcap)
        p.proj_residual(self.proj, bias=self.proj_bias, post_norm=self.post_norm, eps=self.eps)

    @property
    def n_bytes(self) -> int:
        return self.qkv.n_bytes + self.proj.n_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """x += post_norm(W_down (act(W_gate norm(x)) * W_up norm(x)))"""

    norm: Float32 | None
    gate_up: PackedMatrix
    down: PackedMatrix
    post_norm: Float32 | None
    activation: str
    eps: float

    def record(self, p: Program) -> None:
        p.norm_gateup_act(self.norm, self.gate_up, self.activation, self.eps)
        p.down_residual(self.down, post_norm=self.post_norm, eps=self.eps)

    @property
    def n_bytes(self) -> int:
        return self.gate_up.n_bytes + self.down.n_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """x += sum over a token's experts e of share_e * (W_down_e (act(W_gate_e norm(x)) * W_up_e norm(x)))"""

    norm: Float32
    router: PackedMatrix
    experts: list[tuple[PackedMatrix, PackedMatrix]]
    """(gate and up, down)"""
    n_used: int
    renormalize: bool
    activation: str
    eps: float

    def record(self, p: Program) -> None:
        p.norm_experts_residual(
            self.norm, self.router, self.experts, self.n_used, self.renormalize, self.activation, self.eps
        )

    @property
    def n_bytes(self) -> int:
        return self.router.n_bytes + sum(gate_up.n_bytes + down.n_bytes for gate_up, down in self.experts)


@dataclass(frozen=True, slots=True)
class Layer:
    attention: Attention
    feed_forward: Dense | Experts
