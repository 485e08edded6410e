"""A policy in memory: its weights, and the one way in which tokens become states and logits.

Engines and verifiers both go through here, so that "the final hidden state" means the same on both sides: what the
model's output layer is given.
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

from rollouts.errors import (
    BadVersionFolder,
    OutOfMemory,
)
from rollouts.models.architecture import check_architecture
from rollouts.models.facts import ModelFacts, StoredTensor, fingerprint, read_model
from rollouts.models.memory import available_memory
from rollouts.precision import (
    Dtype,
)

_SHARE_FOR_WEIGHTS = 0.9
_NOISE_UNITS = 4

# transformers annotates its functions in parts only, and some of that is wrong.
_auto: Any = AutoModelForCausalLM
_configs: Any = AutoConfig
_logging: Any = transformers_logging
_TORCH_TYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16}
_STORED_TYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class _OutputHook:
    """Before the output layer: lets through the states that are wanted, and keeps them until it is closed."""

    def __init__(self) -> None:
        self.keep: torch.Tensor | None = None
        self._states: torch.Tensor | None = None

    def __call__(self, _: object, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        states = given[0]
        self._states = states if self.keep is None else states.flatten(0, 1)[None, self.keep]
        return (self._states,)

    def taken(self) -> torch.Tensor:
        """What was let through last."""
        if self._states is None:
            raise BadVersionFolder("the model has an output layer that it does not use", hint="use a causal model")
        return self._states

    def close(self) -> None:
        """Lets go of it."""
        self.keep = self._states = None


class Policy:
    """One version of one model, on one device. Made by `load_policy`."""

    def __init__(self, model: PreTrainedModel, facts: ModelFacts) -> None:
        self.facts = facts
        self._model = cast("Any", model)  # transformers annotates its methods in parts only
        self._door = _OutputHook()
        head = self._model.get_output_embeddings()
        if head is None:
            raise BadVersionFolder(f"{facts.folder} holds no model with an output layer", hint="use a causal model")
        head.register_forward_pre_hook(self._door)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return torch.device(self._model.device)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights and states."""
        dtype: torch.dtype = self._model.dtype
        return dtype

    def fill(self, tokens: torch.Tensor, *, cache: Cache) -> None:
        """Puts the keys and values of tokens into a cache, without the output layer.

        Args:
            tokens: int64 [b, t], each row from where the cache ends. A shorter row is padded at its end, with anything.
            cache: One of transformers' own, in which all rows are equally long.
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
        """Returns the final hidden states [b, t, h] and the logits [b, t, v] of tokens, in the policy's own type.

        With `keep` they are [1, k, h] and [1, k, v], and the output layer is given no others.

        Args:
            tokens: int64 [b, t].
            keep: int64 [k], the places whose states and logits are wanted, counted through all rows; None for all.
            positions: int64 [b, t], of each token in its sequence; None where each row begins at 0.
            mask: bool [b, 1, t, s], which of the cache's `s` places each token sees; None for all before it.
            cache: What to put keys and values into, and to see those of earlier tokens in.
        """
        self._door.keep = keep
        try:
            out = self._model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=cache is not None,
            )
            return self._door.taken(), out.logits
        finally:
            self._door.close()

    @contextmanager
    def other_arithmetic(self, *, noise_seed: int | None = None) -> Iterator[None]:
        """Computes within by another attention kernel, whose roundings are others.

        The plain kernel (torch's "math") takes any mask and every device; it computes attention of bfloat16 in
        float32.

        Args:
            noise_seed: If given, each embedding is also changed by random factors of about four units in the last
                place, so that it shows how far rounding alone moves what follows from it.
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
        """Copies another version's weights over these; False, and nothing changed, if they do not fit one to one."""
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
        """Frees the weights; nothing can be computed any more."""
        self._model = None
        gc.collect()  # a model is full of circles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def load_policy(folder: Path, *, dtype: Dtype, device: torch.device, instead_of: Policy | None = None) -> Policy:
    """Loads a version of the policy.

    Args:
        folder: A Hugging Face folder.
        dtype: What it is to compute in.
        device: Where.
        instead_of: A policy on this device and of this type, which is not used any more: the new version takes its
            place if it has its shape. After an error it holds nothing that may be used.

    Raises:
        BadVersionFolder: The folder can't be used, or it changed while it was read.
        OutOfMemory: The weights do not fit.
    """
    torch.set_float32_matmul_precision("highest")  # proofs compare bits that an accelerator may round away for speed
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
    """Returns one tensor on the CPU. It is read and not mapped: a mapped file that is cut off would kill the process.

    Raises:
        BadVersionFolder: The file was cut off.
    """
    data = bytearray(stored.size)
    with stored.file.open("rb") as file:
        file.seek(stored.start)
        if file.readinto(data) != stored.size:
            raise BadVersionFolder(f"{stored.file} was cut off while it was being read")
    if not data:
        return torch.empty(stored.shape, dtype=_STORED_TYPES[stored.dtype])
    return torch.frombuffer(data, dtype=_STORED_TYPES[stored.dtype]).view(stored.shape)


def check_memory(facts: ModelFacts, dtype: Dtype, device: torch.device) -> None:
    """Raises OutOfMemory if a model's weights do not fit on a device."""
    needed = facts.parameters * _TORCH_TYPES[dtype].itemsize
    available = available_memory(device)
    if needed > _SHARE_FOR_WEIGHTS * available:
        raise OutOfMemory(
            f"{facts.parameters:,} parameters in {dtype.value} need {needed / 1e6:,.1f} MB, and {device} has "
            f"{available / 1e6:,.1f} MB",
            hint="use a machine with more memory, or bfloat16",
        )


def check_whole(facts: ModelFacts) -> None:
    """Checks the model's architecture, and that the weights have as many numbers as the config asks for; reads none.

    For a loader that knows foreign names and wrong sides, but not that a part of a tensor of its own was never filled.

    Raises:
        BadVersionFolder: The numbers differ, or the config makes no model, or one of a kind that can't be used.
    """
    with _quiet(), torch.device("meta"):
        try:
            model = _auto.from_config(_configs.from_pretrained(facts.folder, local_files_only=True))
        except (ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError, OSError) as error:
            first_line = str(error).strip().split("\n")[0]
            raise BadVersionFolder(f"no model can be made from {facts.folder}: {first_line}") from error
    check_architecture(model, facts.folder)
    own, with_shared = (
        sum(value.numel() for _, value in model.named_parameters(remove_duplicate=alone)) for alone in (True, False)
    )
    if facts.parameters not in {own, with_shared}:
        raise BadVersionFolder(
            f"the weights in {facts.folder} are not those of its config: {facts.parameters:,} numbers instead of "
            f"{own:,}"
        )


def _from_folder(facts: ModelFacts, dtype: Dtype, device: torch.device) -> PreTrainedModel:
    with _quiet():
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
            raise BadVersionFolder(f"no model can be made from {facts.folder}: {first_line}") from error
    check_architecture(model, facts.folder)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            raise BadVersionFolder(
                f"the weights in {facts.folder} are not those of its config: {kind.replace('_', ' ')} "
                f"{', '.join(sorted(map(str, info[kind]))[:3])}"
            )
    ready: PreTrainedModel = model.to(device).eval().requires_grad_(False)
    return ready


@contextmanager
def _quiet() -> Iterator[None]:
    """Loads without a progress bar and without advice for people at a prompt."""
    bars, level = _logging.is_progress_bar_enabled(), _logging.get_verbosity()
    _logging.disable_progress_bar()
    _logging.set_verbosity_error()
    try:
        yield
    finally:
        _logging.set_verbosity(level)
        if bars:
            _logging.enable_progress_bar()
