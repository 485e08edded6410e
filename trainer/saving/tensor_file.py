"""Encodes a safetensors file in pieces, so that no second copy of the tensors is needed.

The safetensors library first joins all tensors into one bytes object. The format is described at
https://huggingface.co/docs/safetensors/index#format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8
"""The header is padded to a multiple of this many bytes. Wider types come first, so that each tensor is aligned."""


def tensor_file(tensors: Mapping[str, torch.Tensor], *, metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yields the pieces of a file: the header, then each tensor's bytes without copying CPU tensors.

    Args:
        tensors: Tensors on any device, without gradients. They must not change until all pieces are consumed.
        metadata: Metadata strings by name.

    Raises:
        KeyError: The format does not support a tensor's dtype.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    yield len(encoded).to_bytes(8, "little")
    yield encoded
    for name in order:
        yield tensors[name].cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
