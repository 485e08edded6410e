"""Proof by a generating engine that it computes in its numerics class, before its files name the class.

If files name a class in which their node did not compute, they are judged forged and the node is slashed. So the task
generates the shipped recording of the class first, and names no class if a row differs.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.errors import InvalidInput, NotFound
from protocol.runtime.logs import get_logger
from rollouts.engines.interface import Completion, Engine
from rollouts.engines.vllm.numerics import NO_CLASS
from rollouts.errors import EngineFailed
from rollouts.files.samples import Sample
from rollouts.files.schema import read_rollouts
from rollouts.precision import Arithmetic
from rollouts.recompute.reference import PARAMETERS, recording_of, reference_model, reference_requests

_log = get_logger(__name__)


def open_proven(open_with: Callable[[str | None], Engine], device_class: str | None) -> Engine:
    """Opens an engine whose numerics class, if it has one, is proven; the engine has no weights loaded.

    Args:
        open_with: Opens an engine that computes in a device class, in the engine's default class (None), or in no
            class (`NO_CLASS`).
        device_class: The class that the user requests; None for the default.

    Raises:
        EngineFailed: The engine does not reproduce the class that the user requests.
        InvalidInput: vLLM has other kernels than those of the class that the user requests.
        NotFound: This release has no recording of the class that the user requests.
    """
    engine = open_with(device_class)
    own = engine.arithmetics[0]
    if not own.is_class:
        return engine
    try:
        _prove(engine, own)
    except (EngineFailed, InvalidInput, NotFound) as error:
        engine.close()
        if device_class is not None:
            raise
        _log.warning("class-not-proven", arithmetic=str(own), why=error.detail)
        return open_with(NO_CLASS)
    return engine


def _prove(engine: Engine, arithmetic: Arithmetic) -> None:
    """Generates the recording of a class again, with the reference model.

    Raises:
        NotFound: This release has no recording of the class.
        EngineFailed: A row differs, vLLM failed, or this numpy draws another reference model.
    """
    path = recording_of(arithmetic)
    if path is None:
        raise NotFound(
            f"this release has no recording of {arithmetic}, with which a machine proves its class",
            hint="docs/engines.md describes how a recording is made",
        )
    file = read_rollouts(path)
    with reference_model() as (folder, digest):
        if digest != file.header.checkpoint:
            raise EngineFailed("numpy draws another reference model here than for the recording")
        engine.load(folder, version=digest)
        drawn = {one.sample: one for one in engine.generate(reference_requests(), PARAMETERS)}
    for row, sample in enumerate(file.samples):
        if other := _difference(sample, drawn[row]):
            raise EngineFailed(
                f"this machine does not compute like {arithmetic}: row {row} has other {other} than the recording",
                hint="leave out --numerics: the task's files then name no class",
            )


def _difference(recorded: Sample, drawn: Completion) -> str:
    if recorded.output_tokens.tolist() != list(drawn.tokens):
        return "tokens"
    if recorded.logprobs.tolist() != drawn.logprobs.tolist():
        return "log-probabilities"
    return "hidden states" if recorded.proofs != drawn.proofs else ""
