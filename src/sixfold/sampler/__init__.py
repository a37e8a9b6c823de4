"""Logits -> token ids: what a caller may ask of the choice of a token, in one documented order.

    0  log-probabilities are those of the raw logits, before any of the following
    1  logit bias         added; -100 and below forbid the token
    2  allowed tokens     everything outside the list is forbidden; so are stop tokens before `min_tokens`, the last
                          token of a bad word behind its others, and what the grammar does not allow
    3  penalties          repetition over prompt and output, then frequency and presence over the output
    4  temperature        0 ends here: the highest logit, ties to the lowest id
    5  top-k              the k highest, ties to the lowest id
    6  top-p              of these, the shortest list from the top that holds the share p of their probability
    7  min-p              of these, the ones that are at least min-p times as likely as the likeliest
    8  draw               by the inverse of the cumulative distribution, in order of id

The random number of a token is a function of (seed, choice, absolute position) alone. A token depends on the bits of
its own row's logits and on nothing else: probabilities are integers (see weights.py), so every sum is exact, and the
native kernels and the NumPy reference agree on every row and not only on most.

Runs in: worker process. Owns: per slot, sampling parameters, penalty counts, grammar.
May import: structured, messages, errors.
Start reading at: reference.py (one row, step by step), then sampler.py (slots, batches).
"""

from sixfold.sampler.sampler import Draws, Sampler

__all__ = ["Draws", "Sampler"]
