"""Errors of engines.

MusterError
├── EngineFailed          the engine crashed or computed NaN or infinity; `retryable` says whether to try again
│   └── OutOfMemory       one sequence alone does not fit into memory
├── GenerationStopped     the caller stopped the batch
├── EngineBusy            new weights or a second batch were requested while sequences are in progress
├── NothingLoaded         no weights were loaded, or the last load failed half-way
└── InvalidInput          (protocol) an invalid request: see `PromptTooLong`
    └── PromptTooLong     prompt and answer exceed the model's context
"""

from __future__ import annotations

from protocol.errors import Conflict, InvalidInput, MusterError, Unavailable


class GenerationStopped(MusterError):
    """The caller stopped a batch; answers that the engine has not yielded yet are lost."""

    code = "generation-stopped"
    retryable = True
    default_hint = "the same requests with the same seeds give the same answers later"


class EngineBusy(Conflict):
    """Sequences are in progress; each must use one version from its first token to its last."""

    code = "engine-busy"
    default_hint = "exhaust or close the iterator that generate() returned first"


class NothingLoaded(Unavailable):
    """The engine holds no complete weights."""

    code = "nothing-loaded"
    retryable = False
    default_hint = "call load() with a model's folder first"


class PromptTooLong(InvalidInput):
    """The prompt leaves no room for the answer in the model's context."""

    code = "prompt-too-long"
    default_hint = "leave such prompts out of the table of eligible prompts, or lower max_new_tokens"
