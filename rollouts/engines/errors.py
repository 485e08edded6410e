"""What goes wrong in an engine.

MusterError
├── EngineFailed          it crashed, or its numbers are no numbers; `retryable` says whether to try again
│   └── OutOfMemory       not even one sequence fits
├── GenerationStopped     it was told to stop
├── EngineBusy            new weights, or a second batch, while sequences are under way
├── NothingLoaded         asked to generate before any weights were loaded, or after loading failed half-way
└── InvalidInput          (protocol) a request that can't be answered: see `PromptTooLong`
    └── PromptTooLong     the prompt and the answer do not fit in the model's context
"""

from __future__ import annotations

from protocol.errors import Conflict, InvalidInput, MusterError, Unavailable


class GenerationStopped(MusterError):
    """The engine was told to stop in the middle of a batch; what it had not yielded is lost."""

    code = "generation-stopped"
    retryable = True
    default_hint = "the same requests with the same seeds give the same answers later"


class EngineBusy(Conflict):
    """Sequences are under way, and each must be of one version from its first token to its last."""

    code = "engine-busy"
    default_hint = "exhaust or close the iterator that generate() returned first"


class NothingLoaded(Unavailable):
    """There are no whole weights in the engine."""

    code = "nothing-loaded"
    retryable = False
    default_hint = "call load() with a model's folder first"


class PromptTooLong(InvalidInput):
    """The prompt leaves no room for the answer in the model's context."""

    code = "prompt-too-long"
    default_hint = "leave such prompts out of the table of eligible prompts, or lower max_new_tokens"
