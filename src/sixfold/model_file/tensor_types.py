"""The element types that a GGUF tensor can have: number, name, and how many bytes hold how many values.

Source: the type list of the GGUF specification and the block layouts of ggml. A type is listed here so that a file that
holds it can be checked and the type refused by name; only those in `SUPPORTED_TYPES` can be computed with.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BF16", "F16", "F32", "Q4_1", "Q8_0", "SUPPORTED_TYPES", "TENSOR_TYPES", "TensorType"]


class TensorType(NamedTuple):
    """One element type. A row of k values takes k / block_values * block_bytes bytes."""

    name: str
    block_values: int
    block_bytes: int


F32 = 0
F16 = 1
Q4_1 = 3
Q8_0 = 8
BF16 = 30

TENSOR_TYPES: dict[int, TensorType] = {
    F32: TensorType("F32", 1, 4),
    F16: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    Q4_1: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    Q8_0: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 36),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    BF16: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
}
"""Type number -> type. Numbers that ggml has retired (4, 5, 31 to 33, 36 to 38) are unknown here, and refused."""

SUPPORTED_TYPES = frozenset({F32, F16, 2, Q4_1, 6, 7, Q8_0, 12, 13, 14, BF16})
"""What `GGUFFile.data` hands out."""
