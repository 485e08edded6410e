"""Presets: named settings of supervised warm-ups, and base models that they produce.

The devnet uses these base models.

`muster trainer sft --preset devnet --to DIR` reproduces the shipped weights.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from protocol.errors import NotFound

DEVNET = "devnet"
DEVNET_LENGTH = "devnet-length"
DEVNET_DIALOGUE = "devnet-dialogue"

_FOLDER = Path(str(files(__name__)))


def preset_names() -> list[str]:
    """Returns the names of the presets."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def preset_file(name: str) -> Path:
    """Returns the path of a preset's settings file.

    Raises:
        NotFound: There is no preset of this name.
    """
    if name not in preset_names():
        raise NotFound(f"there is no preset {name[:40]!r}", hint=f"there are: {', '.join(preset_names())}")
    return _FOLDER / f"{name}.toml"


def devnet_base(name: str = DEVNET) -> Path:
    """Returns the folder of a base model of the devnet: a version that can be published unchanged.

    The model has Llama's architecture, 0.44 million parameters in float32, and a tokenizer of 64 characters. The folder
    also holds `recipe.json`, for the environment `letters` or `lookup`, and a table of eligible prompts without the
    held-out ones. Callers must not change the folder; copy it first.

    Args:
        name: Preset that produced the base. The recipe of `DEVNET_LENGTH` asks for answers of a target length, and that
            of `DEVNET_DIALOGUE` for dialogues with calls of a tool.

    Raises:
        NotFound: No base of this name is shipped.
    """
    folder = _FOLDER / name
    if name not in preset_names() or not folder.is_dir():
        raise NotFound(f"there is no base {name[:40]!r}", hint=f"one of: {', '.join(_shipped())}")
    return folder


def _shipped() -> list[str]:
    return [name for name in preset_names() if (_FOLDER / name).is_dir()]
