"""What a policy computes for answers that are already there: every state and logit, at a fraction of generation's cost.

Long answers are rows of a batch; short ones are laid one after another without padding, the prompt of a group once, and
a mask keeps them apart.

packing   what is laid into which pass (pure)
passes    the passes themselves
"""

from rollouts.prefill.forward import AnswerSpan, PrefillRows, prefill, usual_tokens
from rollouts.prefill.packing import PrefillItem

__all__ = ["AnswerSpan", "PrefillItem", "PrefillRows", "prefill", "usual_tokens"]
