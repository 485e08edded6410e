"""Computes states and logits of existing answers, at a fraction of the cost of generating them.

Long answers are rows of a batch. Short ones are concatenated without padding, with their group's prompt once, and a
mask separates them.

packing   assignment of answers to forward passes (pure)
forward   the forward passes
"""

from rollouts.prefill.forward import AnswerSpan, PrefillRows, prefill, usual_tokens
from rollouts.prefill.packing import PrefillItem

__all__ = ["AnswerSpan", "PrefillItem", "PrefillRows", "prefill", "usual_tokens"]
