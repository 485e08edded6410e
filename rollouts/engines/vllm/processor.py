"""Logits processor through which vLLM uses our sampler.

Only `running` imports this module, since this module loads vLLM.

vLLM is set to greedy decoding, which skips its own temperature, top-k and top-p. The processor applies temperature,
top-k, top-p and the noise, and leaves vLLM a single token to choose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from rollouts.engines.vllm.rows import BatchRows, Row
from rollouts.engines.vllm.sampler_hook import SamplerHook

SAMPLE = "muster_sample"
"""Key of the sample number in a request's extra arguments; request ids don't serve, because vLLM appends random
characters to them.
"""


class _Worker(Protocol):
    model_runner: Any


class _Parameters(Protocol):
    extra_args: dict[str, Any] | None


class SeededDraws(LogitsProcessor):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Draws every token of a batch.

    vLLM creates the instance, and `attach` finds the instance inside vLLM.
    """

    def __init__(self, vllm_config: object, device: torch.device, is_pin_memory: bool) -> None:
        del vllm_config, device, is_pin_memory
        self.drawing: SamplerHook | None = None
        self.states: torch.Tensor | None = None
        self._rows = BatchRows()

    def is_argmax_invariant(self) -> bool:
        """Returns False: the processor changes the argmax, so vLLM must not skip it."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Applies vLLM's changes of the batch."""
        if batch_update is None:
            return
        self._rows.update(
            removed=batch_update.removed,
            added=[(place, _row(params, drawn)) for place, params, _, drawn in batch_update.added],
            moved=[(source, target, how == MoveDirectionality.SWAP) for source, target, how in batch_update.moved],
        )

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits that are minus infinity except at the drawn token."""
        states, self.states = self.states, None
        if self.drawing is None or states is None or len(states) != len(logits):
            seen = None if states is None else len(states)
            raise RuntimeError(
                f"{len(logits)} rows of logits and {seen} of states, drawing: {self.drawing is not None}"
            )
        tokens = self.drawing.draw(self._rows.first(len(logits)), states, logits)
        return logits.fill_(-torch.inf).scatter_(1, tokens[:, None], 0.0)


def attach(worker: _Worker) -> SeededDraws:
    """Routes the output layer's input to a worker's processor, and returns the processor."""
    runner = worker.model_runner
    (draws,) = (one for one in runner.input_batch.logitsprocs.all if isinstance(one, SeededDraws))
    compute: Callable[..., object] = runner.model.compute_logits

    def compute_logits(hidden_states: torch.Tensor, *args: object, **kwargs: object) -> object:
        draws.states = hidden_states
        return compute(hidden_states, *args, **kwargs)

    runner.model.compute_logits = compute_logits
    return draws


def _row(params: _Parameters, drawn: list[int]) -> Row | None:
    extra = params.extra_args or {}
    return Row(extra[SAMPLE], drawn) if SAMPLE in extra else None
