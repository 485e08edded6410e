"""Named warm-ups, and the devnet's base models made by them.

`muster trainer sft --preset devnet --to DIR` reproduces the shipped weights.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from protocol.errors import NotFound

DEVNET = "devnet"
DEVNET_LENGTH = "devnet-length"

_FOLDER = Path(str(files(__name__)))


def preset_names() -> list[str]:
    """Returns the names of the presets."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def preset_file(name: str) -> Path:
    """Returns the settings of a preset.

    Raises:
        NotFound: There is no preset of this name.
    """
    if name not in preset_names():
        raise NotFound(f"there is no preset {name[:40]!r}", hint=f"there are: {', '.join(preset_names())}")
    return _FOLDER / f"{name}.toml"


def devnet_base(name: str = DEVNET) -> Path:
    """Returns the folder of a base model of the devnet: a version that can be published unchanged.

    Llama-shaped, 0.44 M parameters in float32, a tokenizer of 64 characters, `recipe.json` for `letters` and its table
    of eligible prompts without held-out ones. Read-only: copy it before changing anything.

    Args:
        name: Preset that the base was made with; `DEVNET_LENGTH` has prompts with a target length.

    Raises:
        NotFound: No base of this name is shipped.
    """
    folder = _FOLDER / name
    if name not in preset_names() or not folder.is_dir():
        raise NotFound(f"there is no base {name[:40]!r}", hint=f"one of: {', '.join(_shipped())}")
    return folder


def _shipped() -> list[str]:
    return [name for name in preset_names() if (_FOLDER / name).is_dir()]
