"""Computes states and logits of existing answers, at a fraction of the cost of generating them.

Long answers are rows of a batch. The short answers of a group are concatenated without padding, after a single copy of
the group's prompt, and a mask separates the answers.

packing   assignment of answers to forward passes (pure functions)
forward   the forward passes
"""

from rollouts.prefill.forward import AnswerSpan, PrefillRows, prefill, usual_tokens
from rollouts.prefill.packing import PrefillItem

__all__ = ["AnswerSpan", "PrefillItem", "PrefillRows", "prefill", "usual_tokens"]
