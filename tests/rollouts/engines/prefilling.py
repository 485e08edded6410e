"""States and logits of whole answers by one prefill, as a validator computes them."""

from __future__ import annotations

import torch

from rollouts.engines.interface import SampleRequest
from rollouts.models.policy import Policy


def prefilled(policy: Policy, request: SampleRequest, tokens: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns states and logits before each token, by one pass over the whole answer."""
    first = len(request.prompt_tokens) - 1
    whole = torch.tensor([[*request.prompt_tokens, *tokens[:-1]]])
    states, logits = policy.states_and_logits(whole, keep=torch.arange(first, whole.shape[1]))
    return states[0], logits[0]
