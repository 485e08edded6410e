"""Recorded files of numerics classes, with which a machine proves that it reproduces a class.

The reference model has small integer weights that numpy draws, so every machine makes the same model. A recording is a
rollout file of that model, generated in one numerics class. A machine reproduces the class if its prefill of the
recording equals the recorded values to the bit.

    python -m rollouts.recompute.reference    # records this machine's class; run it with vLLM's Python interpreter
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import InvalidInput, NotFound
from protocol.identifiers import Digest
from protocol.runtime.scratch_folders import scratch_folder
from rollouts.checks import Draws, RowEvidence
from rollouts.engines.interface import SampleRequest
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import read_rollouts, write_rollouts
from rollouts.files.synthetic_files import unleased_header, unrewarded_sample
from rollouts.precision import Arithmetic, Dtype
from rollouts.recompute.errors import ClassNotReproduced, starting
from rollouts.recompute.place import MODEL_FOLDERS
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.sampling.parameters import SamplingParameters

RECORDINGS = Path(__file__).with_name("recordings")
SEED = bytes(range(32))
PARAMETERS = SamplingParameters(max_new_tokens=48)
_PROMPTS = (5, 23, 64, 131)
"""Lengths of the prompts, in tokens."""
_EACH = 3
"""Answers to each prompt."""

_HIDDEN, _WIDE, _LAYERS, _HEADS, _VOCABULARY = 256, 704, 3, 4, 1536
_SCALE = 2.0**-10
"""Weights are integers from -127 to 127 times this number, so that bfloat16 represents them exactly."""


def write_reference_model(folder: Path) -> Digest:
    """Writes the reference model (a Llama of 3 M parameters) into an empty folder; returns its version digest."""
    draws = np.random.Generator(np.random.Philox(key=20261127))

    def weights(rows: int, columns: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        drawn = draws.integers(-127, 128, size=(rows, columns)).astype(np.float32)
        return np.ascontiguousarray(drawn * np.float32(_SCALE))

    kept = _HIDDEN // 2  # keys and values of half as many heads
    tensors = {"model.embed_tokens.weight": weights(_VOCABULARY, _HIDDEN) * np.float32(8)}
    for layer in range(_LAYERS):
        place = f"model.layers.{layer}"
        tensors |= {
            f"{place}.self_attn.q_proj.weight": weights(_HIDDEN, _HIDDEN),
            f"{place}.self_attn.k_proj.weight": weights(kept, _HIDDEN),
            f"{place}.self_attn.v_proj.weight": weights(kept, _HIDDEN),
            f"{place}.self_attn.o_proj.weight": weights(_HIDDEN, _HIDDEN),
            f"{place}.mlp.gate_proj.weight": weights(_WIDE, _HIDDEN),
            f"{place}.mlp.up_proj.weight": weights(_WIDE, _HIDDEN),
            f"{place}.mlp.down_proj.weight": weights(_HIDDEN, _WIDE),
            f"{place}.input_layernorm.weight": np.ones(_HIDDEN, np.float32),
            f"{place}.post_attention_layernorm.weight": np.ones(_HIDDEN, np.float32),
        }
    tensors |= {"model.norm.weight": np.ones(_HIDDEN, np.float32), "lm_head.weight": weights(_VOCABULARY, _HIDDEN)}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _WIDE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS // 2,
        "head_dim": _HIDDEN // _HEADS,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {str(n): n for n in range(_VOCABULARY)}, "unk_token": "0"},
    }
    for name, content in (("config.json", config), ("tokenizer.json", tokenizer)):
        (folder / name).write_text(json.dumps(content, sort_keys=True) + "\n")
    return version_digest(folder_files(folder))


def reference_requests() -> list[SampleRequest]:
    """Returns the requests of a recording."""
    draws = np.random.Generator(np.random.Philox(key=7))
    prompts = [tuple(draws.integers(3, _VOCABULARY, size=length).tolist()) for length in _PROMPTS]
    return [
        SampleRequest(sample=number, prompt_tokens=prompts[number // _EACH], seed=SEED)
        for number in range(_EACH * len(_PROMPTS))
    ]


def recording_of(arithmetic: Arithmetic) -> Path | None:
    """Returns the path of the shipped recording of a numerics class; None if there is none."""
    path = RECORDINGS / f"{str(arithmetic).replace('/', '_')}.parquet"
    return path if path.is_file() else None


@contextmanager
def reference_model() -> Iterator[tuple[Path, Digest]]:
    """Yields the folder and the digest of the reference model, in a temporary folder."""
    with scratch_folder(MODEL_FOLDERS) as folder:
        yield folder, write_reference_model(folder)


def differences(process: VllmProcess) -> list[str]:
    """Returns a message for each row in which a process differs from its class's recording.

    The function loads the reference model into the process; the caller must load its own version again.

    Raises:
        NotFound: This release has no recording of the class.
        ClassNotReproduced: This numpy draws another reference model.
        EngineFailed: The process ended, or vLLM failed.
    """
    path = recording_of(process.arithmetic)
    if path is None:
        raise NotFound(
            f"this release has no recording of {process.arithmetic}, with which a machine proves its class",
            hint="docs/engines.md describes how a recording is made",
        )
    file = read_rollouts(path)
    with reference_model() as (folder, digest):
        if digest != file.header.checkpoint:
            raise ClassNotReproduced(
                f"numpy {np.__version__} draws another reference model than the recording's model",
                arithmetic=process.arithmetic,
                hint="install the release's version of numpy (requirements.lock)",
            )
        process.load(folder, version=digest)
        draws = Draws(seed=SEED, parameters=PARAMETERS)
        evidence = process.compare(file, dict.fromkeys(range(len(file.samples)), draws))
    process.version = None
    return [text for row, one in evidence.items() if (text := difference(file, row, one))]


def prove(process: VllmProcess) -> None:
    """Lets a process recompute the recording of its class, and compares the results with the recording.

    The function loads the reference model into the process; the caller must load its own version again.

    Raises:
        ClassNotReproduced: The process computes other bits than the recording has, or there is no recording.
        EngineFailed: As for `differences`.
    """
    with starting(process.arithmetic):
        found = differences(process)
    if found:
        raise ClassNotReproduced(
            f"this machine does not compute in {process.arithmetic}: {found[0]} of the recorded file",
            arithmetic=process.arithmetic,
            hint="don't judge work of this class here; check the versions of torch and vLLM in the environment",
        )


def difference(file: RolloutFile, row: int, evidence: RowEvidence) -> str:
    """Returns the first difference of a row of a file from its recomputation; empty if they are equal to the bit."""
    sample, gaps = file.samples[row], evidence.gaps
    off = np.flatnonzero(sample.logprobs != evidence.logprobs)
    if len(off):
        at = int(off[0])
        return f"row {row}: token {at} has log-probability {evidence.logprobs[at]!r}, not {sample.logprobs[at]!r}"
    if gaps is None or gaps.mismatches.any():
        return f"row {row}: the seed draws other tokens"
    if any(proof.malformed is not None or proof.distance_total for proof in evidence.proofs):
        return f"row {row}: the hidden states differ"
    return ""


def record(path: Path, *, dtype: Dtype, device_class: str | None = None) -> Arithmetic:
    """Generates and writes the recording of this process's numerics class, in an environment with vLLM.

    Raises:
        InvalidInput: This machine has no numerics class.
    """
    from rollouts.engines.vllm.engine import VllmEngine  # noqa: PLC0415 - fails where vLLM is not installed

    engine = VllmEngine(dtype=dtype, max_batch=4, device_class=device_class)
    arithmetic = engine.arithmetics[0]
    if not arithmetic.is_class:
        raise InvalidInput("this machine has no numerics class", hint="docs/engines.md lists the classes")
    with reference_model() as (folder, digest):
        engine.load(folder, version=digest)
        drawn = {one.sample: one for one in engine.generate(reference_requests(), PARAMETERS)}
        engine.close()
    rows = [unrewarded_sample(drawn[one.sample], prompt=one.prompt_tokens) for one in reference_requests()]
    write_rollouts(path, RolloutFile(unleased_header(arithmetic=arithmetic, checkpoint=digest), tuple(rows)))
    return arithmetic


def main() -> None:
    """Records this machine's class into the folder of shipped recordings, or another folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=RECORDINGS)
    parser.add_argument("--dtype", type=Dtype, default=Dtype.BFLOAT16, choices=list(Dtype))
    parser.add_argument("--numerics", help="device class; default: this machine's own")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    new = options.folder / ".new.parquet"
    arithmetic = record(new, dtype=options.dtype, device_class=options.numerics)
    path = options.folder / f"{str(arithmetic).replace('/', '_')}.parquet"
    new.rename(path)
    sys.stdout.write(f"recorded {arithmetic} in {path}\n")


if __name__ == "__main__":
    main()
