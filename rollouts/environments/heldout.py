"""Which prompts are kept from training, so that an evaluation on them says something."""

from __future__ import annotations

import hashlib

from protocol.errors import InvalidInput
from rollouts.environments.interface import Prompt

_WORDS = 2**64


def is_held_out(prompt: Prompt | int, share: float) -> bool:
    """Whether a prompt belongs to the held-out share. Larger shares contain smaller ones.

    Give the prompt itself where different indices may have the same text, as the synthetic families do: it is then the
    text that decides, and no held-out task is trained on under another index. An index alone is enough where prompts
    are known to differ.

    Args:
        prompt: The prompt, or its index.
        share: From 0 (none) to 1 (all).

    Raises:
        InvalidInput: The share is outside.
    """
    if not 0 <= share <= 1:
        raise InvalidInput(f"a held-out share of {share}", hint="give a share from 0 to 1, such as 0.1")
    of = f"index\n{prompt}" if isinstance(prompt, int) else f"text\n{prompt.text}"
    hashed = hashlib.sha256(f"muster-held-out-v1\n{of}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(hashed[:8], "big") < int(share * _WORDS)
