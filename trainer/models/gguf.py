"""Converts a GGUF file of a causal language model to a model folder.

GGUF is the file format of llama.cpp: quantised weights, configuration and tokenizer in one file. transformers reads it
with the package `gguf`. The folder holds the dequantised weights, rounded to bfloat16.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from rollouts.errors import BadVersionFolder
from rollouts.models.facts import SINGLE_WEIGHTS
from rollouts.models.policy import quiet_transformers
from trainer.saving.files import whole_folder

# transformers does not annotate these classes and functions.
_CONFIGS: Any = AutoConfig
_MODELS: Any = AutoModelForCausalLM
_TOKENIZERS: Any = AutoTokenizer
_load_gguf: Any = load_gguf_checkpoint


def convert_gguf(file: Path, folder: Path) -> None:
    """Writes a model folder: safetensors in bfloat16, `config.json`, tokenizer and chat template.

    Args:
        file: The GGUF file.
        folder: Target folder, created atomically.

    Raises:
        BadVersionFolder: transformers can't read the file, or the file lacks weights of its architecture.
        NotWritten: The disk is full or refuses the write.
    """
    place = {"gguf_file": file.name, "local_files_only": True}
    with quiet_transformers():
        try:
            config = _CONFIGS.from_pretrained(file.parent, **place)
            tokenizer = _TOKENIZERS.from_pretrained(file.parent, **place)
            with torch.device("meta"):
                form = _MODELS.from_config(config)
            loaded = _load_gguf(str(file), return_tensors=True, model_to_load=form, torch_dtype=torch.bfloat16)
        except (ValueError, KeyError, TypeError, OSError, RuntimeError, NotImplementedError, struct.error) as error:
            first_line = str(error).strip().split("\n")[0]
            raise BadVersionFolder(f"no model can be read from {file}: {first_line[:200]}") from error
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in loaded["tensors"].items()}
    tied = set(getattr(form, "all_tied_weights_keys", None) or form._tied_weights_keys or ())
    missing = form.state_dict().keys() - weights.keys() - tied
    if missing or weights.keys() - form.state_dict().keys():
        raise BadVersionFolder(f"the weights in {file} are not those of a {config.model_type} model")
    config.architectures = [type(form).__name__]
    config.dtype = torch.bfloat16
    with whole_folder(folder) as partial, quiet_transformers():
        config.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        save_file(weights, partial / SINGLE_WEIGHTS, metadata={"format": "pt"})


if __name__ == "__main__":
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
