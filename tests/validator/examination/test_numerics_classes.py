"""Examinations of files of a numerics class, by real vLLM processes on this machine's CPU."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protocol.errors import InvalidInput
from protocol.identifiers import ZERO_DIGEST
from protocol.runtime.cpu_class import cpu_class
from protocol.verdicts import Outcome, ReasonCode
from rollouts.checks import CheckedVersion, Draws, RowEvidence
from rollouts.engines.interface import Completion, SampleRequest
from rollouts.engines.vllm import numerics
from rollouts.errors import BadVersionFolder
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import read_rollouts, write_rollouts
from rollouts.files.synthetic_files import unleased_header, unrewarded_sample
from rollouts.precision import Arithmetic, Dtype
from rollouts.recompute import reference
from rollouts.recompute.place import VllmPlace
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.recompute.vllm_recomputer import VllmRecomputer
from rollouts.sampling.parameters import SamplingParameters
from rollouts.toploc import Malformed, ProofResult
from tests.kit.rollout_files import RECIPE, as_version, facts_of, make
from tests.kit.tiny_model import tiny_folder
from tests.kit.vllm_engine import PYTHON, ROOT, EngineProcess
from tests.validator.examination.conftest import Bench, procedure_of
from validator.examination.interface import NotJudged
from validator.examination.model_cache import ModelCache
from validator.examination.reading import LimitedReader
from validator.examination.vllm_cache import VllmCache

pytestmark = pytest.mark.needs_vllm

SEED = bytes(range(32))


@pytest.fixture(scope="module")
def place() -> VllmPlace:
    if not PYTHON.exists():
        pytest.skip(f"there is no vLLM for the CPU in {PYTHON.parents[1]}: run deploy/setup/vllm.sh")
    return VllmPlace(python=PYTHON, device="cpu")


@pytest.fixture(scope="module")
def own_class(place: VllmPlace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arithmetic]:
    """Yields this machine's class in bfloat16; records it if this release has no recording of it."""
    own = cpu_class()
    if own is None:
        pytest.skip("this processor has no numerics class")
    arithmetic = Arithmetic.parse(f"vllm-0.32.0/bfloat16/{own}")
    with pytest.MonkeyPatch.context() as patch:
        if reference.recording_of(arithmetic) is None:
            folder = tmp_path_factory.mktemp("recordings")
            command = [str(PYTHON), "-m", "rollouts.recompute.reference", "--folder", str(folder)]
            subprocess.run(command, cwd=ROOT, env=place.environment(), check=True)
            patch.setattr(reference, "RECORDINGS", folder)
        yield arithmetic


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory, own_class: Arithmetic) -> CheckedVersion:
    """Returns a version whose recipe pays for this machine's class alone."""
    folder = tiny_folder(
        tmp_path_factory.mktemp("class") / "7", kind="llama", num_attention_heads=3, num_key_value_heads=1
    )
    changes = {"arithmetic": (str(own_class),), "length": None, "max_prompt_tokens": 64}
    return as_version(folder, RECIPE.model_copy(update=changes))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, place: VllmPlace) -> Iterator[EngineProcess]:
    del place
    with EngineProcess(tmp_path_factory.mktemp("engine") / "log") as running:
        running.open(dtype=Dtype.BFLOAT16, max_batch=5)
        yield running


@pytest.fixture(scope="module")
def vllm(place: VllmPlace) -> Iterator[VllmCache]:
    """Yields a cache with room for one version, so that versions are replaced in place."""
    cache = VllmCache(place, budget=1)
    yield cache
    cache.close()


@pytest.fixture
def bench(tmp_path: Path, version: CheckedVersion, reader: LimitedReader, models: ModelCache, vllm: VllmCache) -> Bench:
    return Bench(procedure_of(reader, models, vllm=vllm), version, tmp_path, [])


class Generating:
    """Generates with vLLM, from any folder and with any changes of the parameters."""

    def __init__(self, engine: EngineProcess, folder: Path, version: CheckedVersion, **changes: float) -> None:
        self._engine, self._folder, self._version, self._changes = engine, folder, version, changes

    def __call__(self, requests: Sequence[SampleRequest], parameters: SamplingParameters) -> Mapping[int, Completion]:
        self._engine.load(self._folder, version=self._version.digest)
        changed = replace(parameters, **self._changes)  # type: ignore[arg-type]  # fields of the parameters
        return self._engine.generate(requests, changed)


def class_file(
    version: CheckedVersion, engine: EngineProcess, own: Arithmetic, *, weights: Path | None = None, **changes: float
) -> RolloutFile:
    generating = Generating(engine, weights or version.folder, version, **changes)
    return make(version, facts=facts_of(version), generate=generating, arithmetic=own)


@pytest.fixture(scope="module")
def honest(version: CheckedVersion, engine: EngineProcess, own_class: Arithmetic) -> RolloutFile:
    return class_file(version, engine, own_class)


def test_an_honest_file_is_accepted_without_any_difference(
    bench: Bench, honest: RolloutFile, own_class: Arithmetic
) -> None:
    found = bench.conclude(honest)
    assert found.outcome is Outcome.ACCEPTED, found.words
    assert (found.engine, found.dtype) == (str(own_class), "bfloat16")
    assert (found.verifier_engine, found.verifier_dtype) == (str(own_class), "bfloat16")
    assert found.near_ties is None, "no budget of near-ties is needed where honest files have none"
    figures = {one.name: one.figures for one in found.checks}
    assert figures["sampling"]["mismatches"] == 0
    assert figures["sampling"]["largest"] == 0
    assert figures["logprobs"]["largest"] == 0


_PROVE = """
from rollouts.engines.opening import open_engine
from rollouts.precision import Dtype, EngineName
from rollouts.recompute.node_self_test import open_proven
def opened(device_class):
    return open_engine(EngineName.VLLM, dtype=Dtype.BFLOAT16, device="cpu", device_class=device_class)
engine = open_proven(opened, None)
print("class:", engine.arithmetics[0])
"""


def test_a_node_proves_its_class_with_its_own_vllm(place: VllmPlace, own_class: Arithmetic) -> None:
    """Without a recording of the processor's class in this release, the node's files name no class."""
    has_recording = Path(reference.__file__).with_name("recordings") == reference.RECORDINGS
    expected = str(own_class) if has_recording else "vllm/bfloat16"
    command = [str(PYTHON), "-c", _PROVE]
    done = subprocess.run(command, cwd=ROOT, env=place.environment(), capture_output=True, text=True, check=True)
    assert f"class: {expected}\n" in done.stdout


def test_rows_longer_than_a_prefills_tile_and_rows_that_share_a_prompt_have_no_difference(
    place: VllmPlace, own_class: Arithmetic, engine: EngineProcess, tmp_path: Path
) -> None:
    """vLLM's usual attention differs from position 457 on with 512 KiB of cache, and earlier with less.

    Three rows share two blocks of their prompt. Two of them have the same answer, whose states must not be skipped.
    The last row has another seed and other parameters, as in a served file.
    """
    folder = tiny_folder(
        tmp_path / "long",
        kind="llama",
        hidden_size=128,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=4096,
        initializer_range=0.1,
        max_position_embeddings=1024,
    )
    prompts = (tuple(range(5, 75)), tuple(range(5, 75)), (5, 6, 7))
    requests = [SampleRequest(sample=at, prompt_tokens=prompt, seed=SEED) for at, prompt in enumerate(prompts)]
    parameters = SamplingParameters(max_new_tokens=900)
    engine.load(folder, version=ZERO_DIGEST)
    drawn = engine.generate(requests, parameters)
    rows = tuple(unrewarded_sample(drawn[one.sample], prompt=one.prompt_tokens) for one in requests)
    rows += (rows[1],)
    other = Draws(seed=b"\5" * 32, parameters=SamplingParameters(max_new_tokens=40, temperature=0.7, top_p=0.9))
    asked = SampleRequest(sample=4, prompt_tokens=(5, 6, 7), seed=b"\5" * 32)
    rows += (unrewarded_sample(engine.generate([asked], other.parameters)[4], prompt=asked.prompt_tokens),)
    file = RolloutFile(unleased_header(arithmetic=own_class), rows)
    assert max(len(row.output_tokens) for row in rows) > 800
    with VllmProcess(replace(place, threads=2), own_class) as process:
        process.load(folder, version=ZERO_DIGEST)
        draws = dict.fromkeys([2, 0, 1, 3], Draws(seed=SEED, parameters=parameters))
        evidence = process.compare(file, {4: other, **draws})
    for at, row in enumerate(rows):
        np.testing.assert_array_equal(row.logprobs, evidence[at].logprobs)
        assert (gaps := evidence[at].gaps) is not None
        assert not gaps.mismatches.any()
        assert {proof.distance_total for proof in evidence[at].proofs} == {0}


@pytest.mark.parametrize("cheat", ["another step", "temperature", "int8", "torch", "float32"])
def test_close_cheats_in_bfloat16_are_forged(
    bench: Bench,
    version: CheckedVersion,
    engine: EngineProcess,
    own_class: Arithmetic,
    honest: RolloutFile,
    vllm: VllmCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cheat: str,
) -> None:
    match cheat:
        case "another step":
            weights = stepped(version.folder, tmp_path / "step", size=2e-4)
            file = class_file(version, engine, own_class, weights=weights)
        case "temperature":
            file = class_file(version, engine, own_class, temperature=0.8)
        case "int8":
            file = class_file(version, engine, own_class, weights=rounded(version.folder, tmp_path / "int8"))
        case "torch" | "float32":
            dtype = Dtype.FLOAT32 if cheat == "float32" else Dtype.BFLOAT16
            file = make(version, facts=facts_of(version), dtype=dtype, arithmetic=own_class)
    if process_of(vllm) is None:
        bench.conclude(honest)
    before, restarts = process_of(vllm), cheat == "another step"
    if not restarts:  # one start of vLLM is enough for this test
        monkeypatch.setattr(VllmRecomputer, "renew", lambda _: None)
    found = bench.conclude(file)
    assert found.outcome is Outcome.FORGED, found.words
    assert (process_of(vllm) != before) is restarts, "a new process confirmed the result"


def test_versions_are_replaced_in_place_and_both_are_judged(
    bench: Bench,
    reader: LimitedReader,
    models: ModelCache,
    vllm: VllmCache,
    version: CheckedVersion,
    engine: EngineProcess,
    own_class: Arithmetic,
    tmp_path: Path,
    honest: RolloutFile,
) -> None:
    later = stepped(version.folder, tmp_path / "later", size=0.05)
    newer = as_version(later, version.recipe)
    assert bench.conclude(honest).outcome is Outcome.ACCEPTED
    before = process_of(vllm)
    other = Bench(procedure_of(reader, models, vllm=vllm), newer, tmp_path, [])
    assert other.conclude(class_file(newer, engine, own_class)).outcome is Outcome.ACCEPTED
    assert process_of(vllm) == before, "vLLM was not started again for weights of the same shapes"
    assert bench.conclude(honest).outcome is Outcome.ACCEPTED


def test_another_class_is_rejected_without_a_slash_and_without_vllm(
    bench: Bench, honest: RolloutFile, reader: LimitedReader, models: ModelCache, place: VllmPlace
) -> None:
    other = Arithmetic.parse("vllm-0.32.0/bfloat16/sm_90")
    unused = VllmCache(place, budget=1)
    bench.procedure = procedure_of(reader, models, vllm=unused)
    found = bench.conclude(RolloutFile(replace(honest.header, arithmetic=other), honest.samples))
    assert (found.outcome, found.reason) == (Outcome.REJECTED, ReasonCode.BOUNDS_ARITHMETIC)
    assert process_of(unused) is None, "a name in a file must not make a validator start vLLM"


def test_a_validator_without_vllm_leaves_the_work_to_others(
    bench: Bench, honest: RolloutFile, reader: LimitedReader, models: ModelCache
) -> None:
    bench.procedure = procedure_of(reader, models, vllm=VllmCache(VllmPlace(), budget=1))
    found = bench.examine(honest)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == ("class-not-reproduced", False)
    assert "vLLM is not installed" in found.why
    assert found.hint


def test_another_version_of_vllm_leaves_the_work_to_others(
    reader: LimitedReader,
    models: ModelCache,
    place: VllmPlace,
    version: CheckedVersion,
    own_class: Arithmetic,
    tmp_path: Path,
) -> None:
    older = own_class.model_copy(update={"version": "0.31.0"})
    folder = shutil.copytree(version.folder, tmp_path / "older")
    other = as_version(folder, version.recipe.model_copy(update={"arithmetic": (str(older),)}))
    bench = Bench(procedure_of(reader, models, vllm=VllmCache(place, budget=1)), other, tmp_path, [])
    found = bench.examine(make(other, facts=facts_of(other), arithmetic=older))
    assert isinstance(found, NotJudged)
    assert found.code == "class-not-reproduced"
    assert f"no recording of {older}" in found.why
    with pytest.raises(InvalidInput, match="the installed vLLM computes in") as refused, VllmProcess(place, older):
        pass
    assert "install vLLM 0.31.0" in refused.value.hint


def test_a_machine_that_differs_from_the_recording_judges_nothing_of_the_class(
    honest: RolloutFile,
    version: CheckedVersion,
    reader: LimitedReader,
    models: ModelCache,
    place: VllmPlace,
    own_class: Arithmetic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = reference.recording_of(own_class)
    assert recorded is not None
    file = read_rollouts(recorded)
    first = file.samples[0]
    changed = replace(first, logprobs=np.nextafter(first.logprobs, np.float32(0)))
    write_rollouts(tmp_path / recorded.name, RolloutFile(file.header, (changed, *file.samples[1:])))
    monkeypatch.setattr(reference, "RECORDINGS", tmp_path)
    bench = Bench(procedure_of(reader, models, vllm=VllmCache(place, budget=1)), version, tmp_path, [])
    found = bench.examine(honest)
    assert isinstance(found, NotJudged)
    assert found.code == "class-not-reproduced"
    assert "row 0: token 0 has log-probability" in found.why
    assert found.failed_class == str(own_class), "the validator reports the class no longer"


def test_a_class_without_a_recording_is_left_to_others(
    bench: Bench,
    honest: RolloutFile,
    reader: LimitedReader,
    models: ModelCache,
    place: VllmPlace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "RECORDINGS", tmp_path)
    bench.procedure = procedure_of(reader, models, vllm=VllmCache(place, budget=1))
    found = bench.examine(honest)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == ("class-not-reproduced", False)
    assert "this release has no recording" in found.why


def test_a_recipe_with_longer_rows_than_a_class_is_exact_for_is_refused(
    version: CheckedVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numerics, "_LEAST_CACHE", 4 * 16 * 192 + 8 * 16 * 32)  # 16 queries, heads of 32 values
    monkeypatch.setattr(numerics, "_QUERIES", {})
    folder = shutil.copytree(version.folder, tmp_path / "long")
    with pytest.raises(BadVersionFolder, match="is exact up to 192 tokens of prompt and answer") as refused:
        as_version(folder, version.recipe.model_copy(update={"max_prompt_tokens": 153}))
    assert "lower max_prompt_tokens" in refused.value.hint


def test_the_death_of_the_vllm_process_is_no_verdict(bench: Bench, honest: RolloutFile, vllm: VllmCache) -> None:
    bench.conclude(honest)
    pid = process_of(vllm)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    found = bench.examine(honest)
    assert isinstance(found, NotJudged) or found.outcome is Outcome.ACCEPTED, "a new process, or a retry"
    if isinstance(found, NotJudged):
        assert (found.code, found.retryable) == ("engine-failed", True)
        assert bench.conclude(honest).outcome is Outcome.ACCEPTED


def test_a_process_with_other_weights_in_memory_accuses_nobody(
    bench: Bench, version: CheckedVersion, vllm: VllmCache, honest: RolloutFile, tmp_path: Path
) -> None:
    """The first process has the weights of another step under this version's digest, as after a bad reload in place."""
    bench.conclude(honest)
    [(process, _)] = vllm._processes.values()
    process.load(stepped(version.folder, tmp_path / "bad", size=2e-4), version=version.digest)
    before = process.pid
    found = bench.examine(honest)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == ("numerics-unstable", False)
    assert "differ in row" in found.why
    assert found.failed_class == version.recipe.arithmetic[0]
    assert process.pid != before
    assert not process.alive, "neither process is trusted"


def test_a_process_that_wrongly_finds_a_malformed_proof_accuses_nobody(
    bench: Bench, honest: RolloutFile, vllm: VllmCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(honest.samples[0], proofs=bytes(len(honest.samples[0].proofs)))
    forged = bench.conclude(replace(honest, samples=(broken, *honest.samples[1:])))
    assert forged.outcome is Outcome.FORGED, "two processes find that the proof is malformed"
    assert bench.conclude(honest).outcome is Outcome.ACCEPTED, "also after a process that was not trusted"
    compare = VllmProcess.compare
    damaged = process_of(vllm)

    def with_damage(process: VllmProcess, *args: Any, **options: Any) -> dict[int, RowEvidence]:
        found = compare(process, *args, **options)
        if process.pid != damaged:
            return found
        refused = ProofResult.refused(Malformed.LENGTH)
        return {row: replace(one, proofs=(refused,) * len(one.proofs)) for row, one in found.items()}

    monkeypatch.setattr(VllmProcess, "compare", with_damage)
    found = bench.examine(honest)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == ("numerics-unstable", False)


def process_of(vllm: VllmCache) -> int | None:
    """Returns the id of the newest process of a cache."""
    processes = [process for process, _ in vllm._processes.values()]
    return processes[-1].pid if processes else None


def rounded(folder: Path, target: Path) -> Path:
    """Returns a copy of a version whose matrices are rounded to eight bits per row."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        if value.dim() == 2 and "embed" not in name:
            scale = value.abs().amax(dim=1, keepdim=True) / 127
            tensors[name] = (value / scale).round() * scale
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def stepped(folder: Path, target: Path, *, size: float) -> Path:
    """Returns a copy of a version whose weights each differ by `size`, as after a step of Adam."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    draws = torch.Generator().manual_seed(3)
    for name, value in tensors.items():
        tensors[name] = value + size * torch.randn(value.shape, generator=draws).sign()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target
