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

from rollouts.engines.vllm.rows import BatchRows, Drawing, Row
from rollouts.engines.vllm.step_states import StepPart, StepStates

TICKET = "muster_ticket"
"""Key of a request's ticket in its extra arguments. The request id can't identify the request, because vLLM appends
random characters to the id.
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
        self.drawing: Drawing | None = None
        self.states: torch.Tensor | None = None
        self.prefill: StepStates | None = None
        """Receives the states of every step while answers are prefilled by vLLM's scheduler; else None."""
        self.output_layer: Callable[..., Any] | None = None
        """vLLM's output layer: logits [n, v] of states [n, h]."""
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
                f"vLLM gave {len(logits)} rows of logits and {seen} rows of states; "
                f"a sampler is set: {self.drawing is not None}"
            )
        tokens = self.drawing.draw(self._rows.first(len(logits)), states, logits)
        return logits.fill_(-torch.inf).scatter_(1, tokens[:, None], 0.0)


def attach(worker: _Worker) -> SeededDraws:
    """Connects a vLLM worker's output layer to our logits processor; returns the processor."""
    runner = worker.model_runner
    (draws,) = (one for one in runner.input_batch.logitsprocs.all if isinstance(one, SeededDraws))
    compute: Callable[..., Any] = runner.model.compute_logits
    draws.output_layer = compute
    whole: list[torch.Tensor] = []

    def keep_states(_: object, __: object, states: torch.Tensor) -> None:
        if draws.prefill is not None:
            whole[:] = [states]

    def compute_logits(hidden_states: torch.Tensor, *args: object, **kwargs: object) -> object:
        if draws.prefill is not None and whole:
            draws.prefill.take(_parts(runner), whole.pop())
        draws.states = hidden_states
        return compute(hidden_states, *args, **kwargs)

    runner.model.register_forward_hook(keep_states)
    runner.model.compute_logits = compute_logits
    return draws


def _parts(runner: Any) -> list[StepPart]:  # noqa: ANN401 - vLLM is not installed where types are checked
    """Returns the requests of the step that vLLM's model runner computes now."""
    batch = runner.input_batch
    starts = runner.query_start_loc.np
    parts = []
    for place, request in enumerate(batch.req_ids):
        extra = runner.requests[request].sampling_params.extra_args or {}
        if TICKET in extra:
            computed = int(batch.num_computed_tokens_cpu[place])
            parts.append(StepPart(extra[TICKET], computed, int(starts[place]), int(starts[place + 1])))
    return parts


def _row(params: _Parameters, drawn: list[int]) -> Row | None:
    extra = params.extra_args or {}
    return Row(extra[TICKET], drawn) if TICKET in extra else None
