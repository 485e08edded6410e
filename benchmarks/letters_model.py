"""Makes a model that knows the `letters` task in 20 CPU seconds, with certain and uncertain tokens as in real models.

Replay statistics of random weights say little, because no token of such a model is certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from rollouts.environments import Environment, load_environment
from rollouts.environments.letters import VOCABULARY

_MODELS: Any = AutoModelForCausalLM  # transformers annotates its methods only in part
_TOKENIZERS: Any = PreTrainedTokenizerFast
_LOGGING: Any = transformers_logging
_Model = Any
_SPECIAL = ["<pad>", "<end>"]
_END = 1
_BATCH = 64


def warm_up(folder: Path, *, steps: int) -> Path:
    """Trains a model of the devnet's shape on demonstrations, and writes its folder."""
    _LOGGING.disable_progress_bar()
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=_END,
        bos_token_id=None,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    model = _MODELS.from_config(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for tokens, labels in _batches(steps, first=0):
        _step(model, optimiser, tokens, labels)
        falling.step()
    return _save(model, folder)


def further(folder: Path, to: list[Path], *, rate: float) -> None:
    """Trains on for one step per folder and writes the model there."""
    model = _MODELS.from_pretrained(folder)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for path, (tokens, labels) in zip(to, _batches(len(to), first=1_000_000), strict=True):
        _step(model, optimiser, tokens, labels)
        _save(model, path)


def changed(folder: Path, to: Path, change: str) -> Path:
    """Copies a model with 8-bit weights or weights rounded to bfloat16, stored as float32."""
    model = _MODELS.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            if change == "bfloat16":
                weight.copy_(weight.bfloat16().float())
            elif weight.ndim == 2:
                scale = weight.abs().amax(dim=1, keepdim=True) / 127
                weight.copy_((weight / scale).round() * scale)
    return _save(model, to)


def _save(model: _Model, folder: Path) -> Path:
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """Writes the character tokenizer of the task into a model's folder."""
    _TOKENIZERS(tokenizer_object=_tokenizer(), eos_token="<end>", pad_token="<pad>").save_pretrained(folder)


def _tokenizer() -> Tokenizer:
    characters = {text: token for token, text in enumerate([*_SPECIAL, *VOCABULARY])}
    tokenizer = Tokenizer(models.WordLevel(characters, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _step(model: _Model, optimiser: torch.optim.Optimizer, tokens: torch.Tensor, labels: torch.Tensor) -> None:
    optimiser.zero_grad()
    model(input_ids=tokens, labels=labels).loss.backward()
    optimiser.step()


def _batches(count: int, *, first: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    environment, tokenizer = load_environment("letters"), _tokenizer()
    for number in range(count):
        begin = first + number * _BATCH
        rows = [_row(environment, tokenizer, index) for index in range(begin, begin + _BATCH)]
        longest = max(len(tokens) for tokens, _ in rows)
        yield (
            torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in rows]),
            torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows]),
        )


def _row(environment: Environment, tokenizer: Tokenizer, index: int) -> tuple[list[int], list[int]]:
    prompt = environment.prompt(index)
    asked = tokenizer.encode(prompt.text).ids
    answer = [*tokenizer.encode(environment.demonstration(prompt) or "").ids, _END]
    return asked + answer, [-100] * len(asked) + answer
