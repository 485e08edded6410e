"""Selects prompts that are held out from training, so that evaluations on them are meaningful."""

from __future__ import annotations

import hashlib

from protocol.errors import InvalidInput
from rollouts.environments.interface import Prompt

_WORDS = 2**64


def is_held_out(prompt: Prompt | int, share: float) -> bool:
    """Returns whether a prompt is in the held-out share.

    A larger share holds out every prompt that a smaller share holds out.

    Pass the prompt itself if different indices may have the same text, as in the synthetic families. Then the text
    decides, so that a held-out task is not trained on under another index. An index suffices if prompts are distinct.

    Args:
        prompt: The prompt, or its index.
        share: From 0 (none) to 1 (all).

    Raises:
        InvalidInput: The share is not from 0 to 1.
    """
    if not 0 <= share <= 1:
        raise InvalidInput(f"a held-out share can't be {share}", hint="give a share from 0 to 1, such as 0.1")
    of = f"index\n{prompt}" if isinstance(prompt, int) else f"text\n{prompt.text}"
    hashed = hashlib.sha256(f"muster-held-out-v1\n{of}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(hashed[:8], "big") < int(share * _WORDS)
