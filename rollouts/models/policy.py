"""A loaded policy: its weights, and the computation of states and logits from tokens.

Engines and verifiers both use this module, so that "the final hidden state" means the same on both sides: the input of
the model's output layer.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.utils import logging as transformers_logging

from rollouts.errors import BadVersionFolder, OutOfMemory
from rollouts.models.architecture import check_architecture
from rollouts.models.facts import ModelFacts, StoredTensor, fingerprint, read_model
from rollouts.models.memory import available_memory
from rollouts.precision import Dtype

_SHARE_FOR_WEIGHTS = 0.9
_NOISE_UNITS = 4

# transformers annotates only some of its functions, and some of these annotations are wrong.
_auto: Any = AutoModelForCausalLM
_configs: Any = AutoConfig
_logging: Any = transformers_logging
_TORCH_TYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16}
_STORED_TYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class _OutputHook:
    """Hook that passes only requested states to the output layer; keeps them until `close`."""

    def __init__(self) -> None:
        self.keep: torch.Tensor | None = None
        self._states: torch.Tensor | None = None

    def __call__(self, _: object, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        states = given[0]
        self._states = states if self.keep is None else states.flatten(0, 1)[None, self.keep]
        return (self._states,)

    def taken(self) -> torch.Tensor:
        """Returns the states that the latest forward pass gave to the output layer."""
        if self._states is None:
            raise BadVersionFolder("the model has an output layer that it does not use", hint="use a causal model")
        return self._states

    def close(self) -> None:
        """Drops the kept states."""
        self.keep = self._states = None


class Policy:
    """One version of a model on one device; made by `load_policy`."""

    def __init__(self, model: PreTrainedModel, facts: ModelFacts) -> None:
        self.facts = facts
        self._model = cast("Any", model)  # transformers annotates only some of its methods
        self._output_hook = _OutputHook()
        head = self._model.get_output_embeddings()
        if head is None:
            raise BadVersionFolder(f"{facts.folder} has no model with an output layer", hint="use a causal model")
        head.register_forward_pre_hook(self._output_hook)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return torch.device(self._model.device)

    @property
    def dtype(self) -> torch.dtype:
        """The data type of weights and states."""
        dtype: torch.dtype = self._model.dtype
        return dtype

    def fill(self, tokens: torch.Tensor, *, cache: Cache) -> None:
        """Writes the keys and values of tokens into a cache, without running the output layer.

        Args:
            tokens: int64 [b, t], continuing each row of the cache. Shorter rows are padded at the end with any tokens.
            cache: A transformers cache in which all rows have equal length.
        """
        self._model.base_model(input_ids=tokens, past_key_values=cache, use_cache=True)

    def states_and_logits(
        self,
        tokens: torch.Tensor,
        *,
        keep: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the final hidden states [b, t, h] and the logits [b, t, v] in the policy's data type.

        With `keep` the results have the shapes [1, k, h] and [1, k, v], and the output layer computes only the
        requested logits.

        Args:
            tokens: int64 [b, t].
            keep: int64 [k], indices of the requested states and logits, counted over all rows; None for all.
            positions: int64 [b, t], position of each token in its sequence; None if every row begins at 0.
            mask: bool [b, 1, t, s], which of the cache's `s` positions each token sees; None for all earlier positions.
            cache: Provides the keys and values of earlier tokens, and receives those of `tokens`.
        """
        self._output_hook.keep = keep
        try:
            out = self._model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=cache is not None,
            )
            return self._output_hook.taken(), out.logits
        finally:
            self._output_hook.close()

    @contextmanager
    def other_arithmetic(self, *, noise_seed: int | None = None) -> Iterator[None]:
        """Within the context, computes with another attention kernel, which rounds differently.

        This kernel (torch's "math") supports every mask and device; it computes bfloat16 attention in float32.

        Args:
            noise_seed: If given, each embedding is also multiplied by random factors of about four units in the last
                place, to measure the effect of rounding alone on later values.
        """
        hook = None
        if noise_seed is not None:
            generator = torch.Generator().manual_seed(noise_seed)
            size = _NOISE_UNITS * torch.finfo(self.dtype).eps

            def perturb(_: object, __: object, embedded: torch.Tensor) -> torch.Tensor:
                noise = torch.randn(embedded.shape, generator=generator).to(embedded)
                return embedded * (1 + size * noise)

            hook = self._model.get_input_embeddings().register_forward_hook(perturb)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            if hook is not None:
                hook.remove()

    def update(self, facts: ModelFacts) -> bool:
        """Overwrites the weights with those of another version.

        Returns:
            False, without any change, if the names or shapes of the tensors differ.
        """
        named = dict(self._model.named_parameters(remove_duplicate=False)) | dict(self._model.named_buffers())
        wanted = {id(value) for _, value in self._model.named_parameters()}
        fits = all(name in named and named[name].shape == stored.shape for name, stored in facts.tensors.items())
        if not fits or not wanted <= {id(named[name]) for name in facts.tensors}:
            return False
        with torch.no_grad():
            for name, stored in facts.tensors.items():
                named[name].copy_(read_tensor(stored))
        self.facts = facts
        return True

    def drop(self) -> None:
        """Frees the weights; the policy is unusable afterwards."""
        self._model = None
        gc.collect()  # models contain reference cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def load_policy(folder: Path, *, dtype: Dtype, device: torch.device, instead_of: Policy | None = None) -> Policy:
    """Loads a version of the policy.

    Args:
        folder: A Hugging Face folder.
        dtype: Data type of the computation.
        device: Device of the computation.
        instead_of: A policy that is no longer used, on the same device and with the same data type. If the shapes are
            equal, the new version's weights overwrite its weights in place. After an error, the caller must not use
            the old policy any more.

    Raises:
        BadVersionFolder: The folder is unusable, or changed while it was read.
        OutOfMemory: The weights do not fit into memory.
    """
    torch.set_float32_matmul_precision("highest")  # TF32 would change the bits that proofs compare
    before = fingerprint(folder) if folder.is_dir() else ()
    facts = read_model(folder)
    try:
        if instead_of is not None and instead_of.facts.shape == facts.shape and instead_of.update(facts):
            policy = instead_of
        else:
            if instead_of is not None:
                instead_of.drop()
            check_memory(facts, dtype, device)
            policy = Policy(_from_folder(facts, dtype, device), facts)
    except (OSError, SafetensorError) as error:
        raise BadVersionFolder(f"the weights in {folder} can't be read: {error}") from error
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"the weights in {folder} do not fit on {device}: {error}") from error
    if fingerprint(folder) != before:
        raise BadVersionFolder(
            f"{folder} changed while it was being read", hint="a version's folder is written once, before it is used"
        )
    return policy


def read_tensor(stored: StoredTensor) -> torch.Tensor:
    """Returns one tensor on the CPU.

    The function reads the file instead of mapping it into memory, because the process would be killed if a mapped file
    was truncated.

    Raises:
        BadVersionFolder: The file was truncated.
    """
    data = bytearray(stored.size)
    with stored.file.open("rb") as file:
        file.seek(stored.start)
        if file.readinto(data) != stored.size:
            raise BadVersionFolder(f"{stored.file} was truncated while it was being read")
    if not data:
        return torch.empty(stored.shape, dtype=_STORED_TYPES[stored.dtype])
    return torch.frombuffer(data, dtype=_STORED_TYPES[stored.dtype]).view(stored.shape)


def check_memory(facts: ModelFacts, dtype: Dtype, device: torch.device) -> None:
    """Raises OutOfMemory if a model's weights do not fit on a device."""
    needed = facts.parameters * _TORCH_TYPES[dtype].itemsize
    available = available_memory(device)
    if needed > _SHARE_FOR_WEIGHTS * available:
        raise OutOfMemory(
            f"{facts.parameters:,} parameters in {dtype.value} need {needed / 1e6:,.1f} MB, but {device} has "
            f"{available / 1e6:,.1f} MB available",
            hint="use a machine with more memory, or bfloat16",
        )


def check_whole(facts: ModelFacts) -> None:
    """Checks the architecture and the number of elements, without reading weights.

    The weights must have as many elements as the config describes. vLLM detects unknown names and wrong shapes, but may
    not detect that it filled a tensor only partly.

    Raises:
        BadVersionFolder: The numbers of elements differ, or the config describes no usable model.
    """
    with quiet_transformers(), torch.device("meta"):
        try:
            model = _auto.from_config(_configs.from_pretrained(facts.folder, local_files_only=True))
        except (ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError, OSError) as error:
            first_line = str(error).strip().split("\n")[0]
            raise BadVersionFolder(f"no model can be loaded from {facts.folder}: {first_line}") from error
    check_architecture(model, facts.folder)
    own, with_shared = (
        sum(value.numel() for _, value in model.named_parameters(remove_duplicate=alone)) for alone in (True, False)
    )
    if facts.parameters not in {own, with_shared}:
        raise BadVersionFolder(
            f"the weights in {facts.folder} do not match its config: {facts.parameters:,} elements instead of {own:,}"
        )


def _from_folder(facts: ModelFacts, dtype: Dtype, device: torch.device) -> PreTrainedModel:
    with quiet_transformers():
        try:
            model, info = _auto.from_pretrained(
                facts.folder,
                dtype=_TORCH_TYPES[dtype],
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                disable_mmap=True,  # see read_tensor
                output_loading_info=True,
            )
        except (ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            first_line = str(error).strip().split("\n")[0]
            raise BadVersionFolder(f"no model can be loaded from {facts.folder}: {first_line}") from error
    check_architecture(model, facts.folder)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            raise BadVersionFolder(
                f"the weights in {facts.folder} do not match its config: {kind.replace('_', ' ')} "
                f"{', '.join(sorted(map(str, info[kind]))[:3])}"
            )
    ready: PreTrainedModel = model.to(device).eval().requires_grad_(False)
    return ready


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppresses the progress bars and log messages of transformers."""
    bars, level = _logging.is_progress_bar_enabled(), _logging.get_verbosity()
    _logging.disable_progress_bar()
    _logging.set_verbosity_error()
    try:
        yield
    finally:
        _logging.set_verbosity(level)
        if bars:
            _logging.enable_progress_bar()
