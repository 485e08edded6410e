"""Computes states and logits of existing answers, at a fraction of the cost of generating them.

Long answers are rows of a batch. Short answers are concatenated without padding, after a single copy of their group's
prompt, and a mask separates the answers.

packing   assignment of answers to forward passes (pure)
forward   the forward passes
"""

from rollouts.prefill.forward import AnswerSpan, PrefillRows, prefill, usual_tokens
from rollouts.prefill.packing import PrefillItem

__all__ = ["AnswerSpan", "PrefillItem", "PrefillRows", "prefill", "usual_tokens"]
