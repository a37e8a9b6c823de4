"""How the byte-level vocabularies cut a text into words, by the name that a GGUF file gives (`tokenizer.ggml.pre`).

The merges of such a vocabulary apply within words only, so a wrong rule degrades a model without any error. A rule is a
list of patterns: each cuts every piece that the one before has left into its matches and what lies between them.
The patterns are those that the models were trained with (`pre_tokenizer` of their tokenizer.json); a name stands here
only if its rule is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers

from sixfold.errors import ModelFileError

__all__ = ["WordRule", "word_rule"]


@dataclass(frozen=True)
class WordRule:
    """What a name stands for."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    """A word that is a token is that token, whatever its merges would give."""
    adds_bos: bool = False
    """Whether a sequence begins with the BOS token when the file does not say."""

    def pre_tokenizer(self, missing: Sequence[str] = ()) -> pre_tokenizers.PreTokenizer:
        """The library's form: cut, then write each byte as a character, then cut at characters that are no tokens."""
        steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        if missing:
            # Left in a word, the library would drop such a character first and merge what stood around it.
            gaps = Regex("|".join(f"\\x{{{ord(char):x}}}" for char in missing))
            steps.append(pre_tokenizers.Split(gaps, behavior="removed"))
        return pre_tokenizers.Sequence(steps)


_ENDINGS = r"'(?i:[sdmt]|ll|ve|re)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_SIGNS}|{_BLANKS}"
_QWEN2 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_SIGNS}|{_BLANKS}"
_QWEN35 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SIGNS_AND_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _by_case(endings: str, digits: str) -> str:
    """Words end where a capital follows a small letter."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = f"{lead}{_UPPER}*{_LOWER}+{endings}|{lead}{_UPPER}+{_LOWER}*{endings}"
    return f"{words}|{digits}|{_SIGNS_AND_SLASH}|{_BLANKS}"


_PLAIN = WordRule((_GPT2,))
_SINGLE_DIGITS = WordRule((r"\p{N}", _GPT2))
_LLAMA = WordRule((_LLAMA3,), whole_words=True, adds_bos=True)
_THREE_DIGITS = WordRule((_LLAMA3,))
_QWEN = WordRule((_QWEN2,))

_RULES: dict[str, WordRule] = {
    "dbrx": _THREE_DIGITS,
    "deepseek-r1-qwen": _QWEN,
    "exaone": _SINGLE_DIGITS,
    "exaone4": _PLAIN,
    "falcon": WordRule((r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "falcon3": _LLAMA,
    "glm4": WordRule((_LLAMA3,), whole_words=True),
    "gpt-2": _PLAIN,
    "gpt-4o": WordRule((_by_case(f"(?:{_ENDINGS})?", r"\p{N}{1,3}"),)),
    "command-r": _SINGLE_DIGITS,
    "hunyuan": _QWEN,
    "lfm2": _LLAMA,
    "llama-bpe": _LLAMA,
    "llama-v3": _LLAMA,
    "llama3": _LLAMA,
    "llama4": WordRule((_by_case(f"(?:{_ENDINGS})?", r"\p{N}{1,3}"),)),
    "megrez": _QWEN,
    "minerva-7b": _SINGLE_DIGITS,
    "mpt": _PLAIN,
    "olmo": _PLAIN,
    "phi-2": _PLAIN,
    "pixtral": _LLAMA,
    "qwen2": _QWEN,
    "qwen35": WordRule((_QWEN35,)),
    "refact": _SINGLE_DIGITS,
    "smaug-bpe": _THREE_DIGITS,
    "smollm": _SINGLE_DIGITS,
    "stablelm2": _QWEN,
    "starcoder": _SINGLE_DIGITS,
    "tekken": WordRule((_by_case("", r"\p{N}"),), whole_words=True, adds_bos=True),
}


def word_rule(name: str) -> WordRule:
    """The rule of a name.

    Raises:
        ModelFileError: the name is empty or not known.
    """
    rule = _RULES.get(name)
    if rule is None:
        fault = f"{name!r} is not supported" if name else "is missing"
        raise ModelFileError(f"pre-tokenizer (tokenizer.ggml.pre) {fault}; known: {', '.join(sorted(_RULES))}")
    return rule
