"""Reads and checks a policy folder before any weight is loaded.

A policy folder has `config.json`, weights in safetensors (one file, or several with an index), `tokenizer.json`, and
`generation_config.json` if its end tokens differ from those of the config. Code in a folder is never run, and pickles
are never opened. This module does not load torch.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollouts.errors import BadVersionFolder

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
TOKENIZER_FILE = "tokenizer.json"
SINGLE_WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"

ADAPTER_FILE = "adapter_config.json"

COMPANION_FILES = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    GENERATION_FILE,
)
"""Files besides weights, config and recipe that a version copies from the model's folder, if they exist there."""

_LARGEST_JSON = 64 * 1024 * 1024
_LARGEST_HEADER = 100 * 1024 * 1024
"""Maximum bytes of a header, as the safetensors format defines it."""
_NOT_OF_A_CONFIG = {
    "quantization_config": "publish versions in bfloat16 or float32, as they are trained",
    "transformers_weights": "put the weights in model.safetensors, or in the files that its index lists",
    "attn_implementation": "leave it out: each engine chooses its own attention implementation",
    "_attn_implementation": "leave it out: each engine chooses its own attention implementation",
    "_attn_implementation_internal": "leave it out: each engine chooses its own attention implementation",
    "experts_implementation": "leave it out: each engine chooses its own implementation of experts",
    "_experts_implementation": "leave it out: each engine chooses its own implementation of experts",
    "_experts_implementation_internal": "leave it out: each engine chooses its own implementation of experts",
}
"""Refused config keys, with a hint for each. With such a key, transformers would load code from the internet, load
weights from other files, or compute in another way than the other readers of the folder.
"""
_FREQUENCIES_BY_LENGTH = {"dynamic", "longrope", "su"}
"""Types of rotary embeddings that depend on a batch's longest sequence, so that generation and prefill would differ."""
_FLOAT_TYPES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a weights file.

    Args:
        file: The file.
        dtype: The safetensors data type.
        shape: The shape.
        start: Offset of the tensor's first byte in the file.
        size: Number of bytes.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int

    @property
    def values(self) -> int:
        """Number of elements."""
        count = 1
        for side in self.shape:
            count *= side
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of a model that engines and verifiers need.

    Args:
        folder: The policy folder.
        config: The content of `config.json`.
        vocabulary: Number of logits per row. The tokenizer may have fewer tokens, never more.
        context: Maximum tokens of prompt and answer together.
        hidden: Width of the hidden states, which proofs commit to.
        end_tokens: The tokens that end an answer: those of `generation_config.json` if it names any, else those of
            `config.json`.
        tensors: Tensors in the weights files, by name.
    """

    folder: Path
    config: dict[str, Any]
    vocabulary: int
    context: int
    hidden: int
    end_tokens: frozenset[int]
    tensors: dict[str, StoredTensor]

    @property
    def parameters(self) -> int:
        """Number of elements of all weights."""
        return sum(tensor.values for tensor in self.tensors.values())

    @property
    def shape(self) -> object:
        """Returns the config and tensor shapes; versions with equal results can replace each other in place.

        Config keys that do not affect the memory layout are left out.
        """
        passing = {"dtype", "torch_dtype", "transformers_version", "_name_or_path", "eos_token_id", "use_cache"}
        config = {key: value for key, value in self.config.items() if key not in passing}
        return config, {name: tensor.shape for name, tensor in self.tensors.items()}


def read_model(folder: Path) -> ModelFacts:
    """Reads and checks a folder without the values of its weights.

    Raises:
        BadVersionFolder: A file or value is missing, malformed or unsupported; the message names it.
    """
    if not folder.is_dir():
        raise BadVersionFolder(f"{folder} is not a folder")
    config = _json(folder / CONFIG_FILE, why="it describes the model")
    _check_config(config)
    _check_attention(config)
    facts = ModelFacts(
        folder=folder,
        config=config,
        vocabulary=_count(config, "vocab_size"),
        context=_count(config, "max_position_embeddings"),
        hidden=_count(config, "hidden_size"),
        end_tokens=_end_tokens(folder, config),
        tensors=_tensors(folder),
    )
    _check_tokenizer(facts)
    return facts


def fingerprint(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Returns name, size, modification time and inode of each file.

    The result changes if a file is written.
    """
    found = ((path, path.stat()) for path in sorted(folder.iterdir()) if path.is_file())
    return tuple((path.name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in found)


def _json(path: Path, *, why: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise BadVersionFolder(f"{path} has more than {_LARGEST_JSON} bytes")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise BadVersionFolder(f"{path} can't be read: {error.strerror}", hint=why) from error
    except (ValueError, RecursionError) as error:
        raise BadVersionFolder(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadVersionFolder(f"{path} is not a JSON object")
    return value


def _count(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
        raise BadVersionFolder(f"{CONFIG_FILE} has {value!r} for {name}", hint="it must be a positive whole number")
    return value


def _check_config(config: dict[str, Any]) -> None:
    """Rejects settings, at any level of the config, under which two readers would compute differently."""
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for name, hint in _NOT_OF_A_CONFIG.items():
            if part.get(name) is not None:
                raise BadVersionFolder(f"{CONFIG_FILE} has {name}: {str(part[name])[:80]!r}", hint=hint)
        kinds = {part.get("rope_type"), part.get("type")} if {"rope_type", "type"} & part.keys() else set()
        if changing := {kind for kind in kinds if isinstance(kind, str)} & _FREQUENCIES_BY_LENGTH:
            raise BadVersionFolder(
                f"{CONFIG_FILE} has rotary positions of type {min(changing)}, which change with a batch's longest row",
                hint="verification can't reproduce generation with such positions; use another type, such as yarn",
            )


def _check_attention(config: dict[str, Any]) -> None:
    """Rejects sliding windows and recurrent layers, because a cache by position can't hold their states."""
    named = config.get("layer_types") or ["full_attention"]
    kinds = set(map(str, named)) if isinstance(named, list) else {str(named)}
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if kinds == {"full_attention"} and (config.get("layer_types") is not None or window is None):
        return
    raise BadVersionFolder(
        f"the model has layers other than full attention: {', '.join(sorted(kinds))}, window {window}",
        hint="the torch engine and the verifier support full attention only",
    )


def _end_tokens(folder: Path, config: dict[str, Any]) -> frozenset[int]:
    named: object = None
    if (folder / GENERATION_FILE).exists():
        named = _json(folder / GENERATION_FILE, why="it names the end tokens").get("eos_token_id")
    if named is None:
        named = config.get("eos_token_id")
    tokens = named if isinstance(named, list) else [named]
    vocabulary = _count(config, "vocab_size")
    if not tokens or not all(type(token) is int and 0 <= token < vocabulary for token in tokens):
        raise BadVersionFolder(
            f"the end tokens of {folder} are {named!r}",
            hint=f"eos_token_id in {GENERATION_FILE} or {CONFIG_FILE} must be one or more tokens below {vocabulary}",
        )
    return frozenset(tokens)


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    if (folder / ADAPTER_FILE).exists():
        raise BadVersionFolder(
            f"{folder} has an {ADAPTER_FILE}, which changes the weights", hint="merge the adapter into the weights"
        )
    if (folder / WEIGHTS_INDEX).exists():
        if (folder / SINGLE_WEIGHTS).exists():
            raise BadVersionFolder(
                f"{folder} has {SINGLE_WEIGHTS} and {WEIGHTS_INDEX}",
                hint="publish only one of the two: different readers would choose different files",
            )
        index = _json(folder / WEIGHTS_INDEX, why="it lists the weights files").get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise BadVersionFolder(f"{folder / WEIGHTS_INDEX} has no weight_map from tensors to files")
        names = sorted(set(index.values()))
    else:
        index, names = None, [SINGLE_WEIGHTS]
    tensors: dict[str, StoredTensor] = {}
    for name in names:
        if Path(name).name != name:
            raise BadVersionFolder(f"{WEIGHTS_INDEX} names {name!r}, which is not a file of this folder")
        found = _header(folder / name)
        if twice := tensors.keys() & found.keys():
            raise BadVersionFolder(f"{min(twice)} occurs in {tensors[min(twice)].file.name} and in {name}")
        tensors |= found
    where = {name: tensor.file.name for name, tensor in tensors.items()}
    if index is not None and index != where:
        wrong = min(name for name in index.keys() | where.keys() if index.get(name) != where.get(name))
        raise BadVersionFolder(f"{WEIGHTS_INDEX} and the files that it lists do not agree about {wrong}")
    return tensors


def _header(path: Path) -> dict[str, StoredTensor]:
    """Reads a file's tensors from its header: 8 bytes of little-endian length, JSON of that length, then data."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
            if length > min(_LARGEST_HEADER, size - 8):
                raise BadVersionFolder(f"{path} is not a safetensors file, or is truncated")
            header = json.loads(file.read(length))
            tensors = {
                name: _stored(path, entry, data=8 + length) for name, entry in header.items() if name != "__metadata__"
            }
    except OSError as error:
        raise BadVersionFolder(
            f"{path} can't be read: {error.strerror}", hint="weights are in safetensors; pickles are not opened"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise BadVersionFolder(f"{path} has a malformed header") from error
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size)):
        if tensor.start != end:
            raise BadVersionFolder(
                f"{name} in {path} begins at byte {tensor.start}, but the data before it end at byte {end}"
            )
        end += tensor.size
    if size != end:
        raise BadVersionFolder(f"{path} has {size} bytes, but its header says {end}")
    for name, tensor in tensors.items():
        if tensor.dtype not in _FLOAT_TYPES:
            raise BadVersionFolder(
                f"{name} in {path} has type {tensor.dtype}", hint=f"weights are of {', '.join(_FLOAT_TYPES)}"
            )
        if tensor.size != tensor.values * _FLOAT_TYPES[tensor.dtype]:
            raise BadVersionFolder(f"{name} in {path} has {tensor.size} bytes for shape {tensor.shape}")
    return tensors


def _stored(path: Path, entry: dict[str, Any], *, data: int) -> StoredTensor:
    start, end = map(int, entry["data_offsets"])
    shape = tuple(map(int, entry["shape"]))
    if not 0 <= start <= end or min(shape, default=0) < 0:
        raise ValueError
    return StoredTensor(file=path, dtype=str(entry["dtype"]), shape=shape, start=data + start, size=end - start)


def _check_tokenizer(facts: ModelFacts) -> None:
    from tokenizers import Tokenizer  # noqa: PLC0415  # slow to import, and not needed for folders refused above

    path = facts.folder / TOKENIZER_FILE
    if not path.is_file():
        raise BadVersionFolder(
            f"{facts.folder} has no {TOKENIZER_FILE}", hint="publish the tokenizer with the weights: prompts need it"
        )
    if path.stat().st_size > _LARGEST_JSON:
        raise BadVersionFolder(f"{path} has more than {_LARGEST_JSON} bytes")
    try:
        largest = max(Tokenizer.from_file(str(path)).get_vocab().values(), default=-1)
    except Exception as error:  # the library raises bare Exception
        raise BadVersionFolder(f"{path} is not a tokenizer: {error}") from error
    if largest >= facts.vocabulary:
        raise BadVersionFolder(
            f"the tokenizer has token {largest}, but the model has only {facts.vocabulary} tokens",
            hint="tokenizer and weights are of different models",
        )
