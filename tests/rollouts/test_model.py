"""A folder from which no policy can be loaded is refused with the reason before any weight is read."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, processors
from transformers import PreTrainedTokenizerFast

from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat
from rollouts.models.facts import read_model
from rollouts.models.text_decoder import TextDecoder
from rollouts.models.tokenizer import FolderTokenizer
from tests.kit.tiny_model import (
    BEGIN,
    CHARACTERS,
    CONTEXT,
    END,
    PAD,
    UNKNOWN,
    VOCABULARY,
    rewrite_json,
    tiny_folder,
    tokenizer,
)

Damage = Callable[[Path], object]


@pytest.fixture
def folder(qwen2: Path, tmp_path: Path) -> Path:
    return shutil.copytree(qwen2, tmp_path / "model")


def test_model_facts_are_read_from_a_folder(qwen2: Path, llama: Path) -> None:
    facts = read_model(qwen2)
    assert (facts.vocabulary, facts.context, facts.hidden) == (VOCABULARY, CONTEXT, 96)
    assert facts.end_tokens == {END}
    assert facts.parameters < read_model(llama).parameters, "a Llama has a separate output layer"


def test_end_tokens_of_the_generation_config_override_those_of_the_config(folder: Path) -> None:
    rewrite_json(folder / "generation_config.json", eos_token_id=[5, 9])
    assert read_model(folder).end_tokens == {5, 9}
    (folder / "generation_config.json").unlink()
    assert read_model(folder).end_tokens == {END}


def test_two_versions_of_one_model_have_the_same_shape_in_any_stored_dtype(folder: Path, tmp_path: Path) -> None:
    other = tiny_folder(tmp_path / "other", seed=1, dtype=torch.bfloat16)
    wider = tiny_folder(tmp_path / "wider", intermediate_size=200)
    assert read_model(folder).shape == read_model(other).shape
    assert read_model(folder).shape != read_model(wider).shape


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def as_int8(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int8)
    save_file(weights, folder / "model.safetensors")


def with_header(folder: Path, **entry: object) -> None:
    """Writes another safetensors header for the same bytes."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header["model.norm.weight"] |= entry
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])


def in_two_files(folder: Path, **index: str) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {name: "one.safetensors" if "layers.0" in name else "two.safetensors" for name in weights}
    for file in set(where.values()):
        save_file({name: weights[name] for name in weights if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where | index}))


def with_a_hole(folder: Path) -> None:
    """Adds bytes that belong to no tensor, which some readers accept and some refuse."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    for entry in header.values():
        if "data_offsets" in entry:
            entry["data_offsets"] = [at + 64 for at in entry["data_offsets"]]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64) + whole[8 + length :])


def with_single_and_index(folder: Path) -> None:
    single = (folder / "model.safetensors").read_bytes()
    in_two_files(folder)
    (folder / "model.safetensors").write_bytes(single)


def with_one_tensor_twice(folder: Path) -> None:
    in_two_files(folder)
    norm = load_file(folder / "two.safetensors")["model.norm.weight"]
    save_file(load_file(folder / "one.safetensors") | {"model.norm.weight": norm}, folder / "one.safetensors")


def without_end_token(folder: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        rewrite_json(folder / name, eos_token_id=None)


def larger_tokenizer(folder: Path) -> None:
    larger = tokenizer()
    larger.add_tokens([f"extra{number}" for number in range(40)])
    larger.save_pretrained(folder)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json can't be read: No such file"),
    "a config that is cut off": (lambda folder: cut(folder / "config.json", 50), "is not JSON"),
    "a config that is a list": (lambda folder: (folder / "config.json").write_text("[]"), "is not a JSON object"),
    "no context": (
        lambda folder: rewrite_json(folder / "config.json", max_position_embeddings=None),
        "None for max_pos",
    ),
    "a vocabulary of true": (
        lambda folder: rewrite_json(folder / "config.json", vocab_size=True),
        "True for vocab_size",
    ),
    "quantised": (
        lambda folder: rewrite_json(folder / "config.json", quantization_config={"bits": 4}),
        "has quantization_config",
    ),
    "code for attention from the internet": (
        lambda folder: rewrite_json(folder / "config.json", attn_implementation="somebody/kernel"),
        "config.json has attn_implementation: 'somebody/kernel'",
    ),
    "code for attention, named within": (
        lambda folder: rewrite_json(folder / "config.json", text_config={"_attn_implementation": "somebody/kernel"}),
        "config.json has _attn_implementation",
    ),
    "weights in another file": (
        lambda folder: rewrite_json(folder / "config.json", transformers_weights="other.safetensors"),
        "config.json has transformers_weights",
    ),
    "weights that an adapter changes": (
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        "has an adapter_config.json",
    ),
    "positions that depend on the batch": (
        lambda folder: rewrite_json(folder / "config.json", rope_parameters={"rope_type": "longrope"}),
        "rotary positions of type longrope",
    ),
    "positions that depend on the batch, as older configs say it": (
        lambda folder: rewrite_json(folder / "config.json", rope_scaling={"type": "dynamic", "factor": 2.0}),
        "rotary positions of type dynamic",
    ),
    "weights in one file and in several": (with_single_and_index, "has model.safetensors and model.safetensors.index"),
    "a tensor in two files": (with_one_tensor_twice, "model.norm.weight occurs in one.safetensors and in two"),
    "an index that takes a tensor from the wrong file": (
        lambda folder: in_two_files(folder, **{"model.norm.weight": "one.safetensors"}),
        "do not agree about model.norm.weight",
    ),
    "bytes between header and tensors": (with_a_hole, "but the data before it end at byte"),
    "a tokenizer without end": (
        lambda folder: os.truncate(folder / "tokenizer.json", (64 << 20) + 1),
        "tokenizer.json has more than",
    ),
    "sliding windows": (
        lambda folder: rewrite_json(folder / "config.json", layer_types=["sliding_attention", "full_attention"]),
        "layers other than full attention: full_attention, sliding_attention",
    ),
    "a window for all layers": (
        lambda folder: rewrite_json(
            folder / "config.json", layer_types=None, sliding_window=8, use_sliding_window=None
        ),
        "window 8",
    ),
    "layer types that are no list": (
        lambda folder: rewrite_json(folder / "config.json", layer_types=7),
        "layers other than full attention: 7",
    ),
    "no end token": (
        without_end_token,
        "the end tokens of .* are None",
    ),
    "an end token outside the vocabulary": (
        lambda folder: rewrite_json(folder / "generation_config.json", eos_token_id=[1, 64]),
        r"the end tokens of .* are \[1, 64\]",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors can't be read"),
    "weights that are cut off": (lambda folder: cut(folder / "model.safetensors", 5000), "but its header says"),
    "weights without a header": (lambda folder: cut(folder / "model.safetensors", 7), "is not a safetensors file"),
    "weights that are a pickle": (
        lambda folder: torch.save({"a": torch.zeros(100)}, folder / "model.safetensors"),
        "is not a safetensors file",
    ),
    "a tensor of more values than bytes": (
        lambda folder: with_header(folder, shape=[97]),
        r"model.norm.weight in .* has 384 bytes for shape \(97,\)",
    ),
    "a tensor of negative size": (lambda folder: with_header(folder, shape=[-1, -96]), "malformed header"),
    "a tensor that ends before it begins": (
        lambda folder: with_header(folder, data_offsets=[384, 0]),
        "malformed header",
    ),
    "weights of whole numbers": (as_int8, "model.norm.weight in .* has type I8"),
    "an index that leaves the folder": (
        lambda folder: in_two_files(folder, other="../two.safetensors"),
        "names '../two.safetensors', which is not a file of this folder",
    ),
    "an index of a tensor that is not there": (
        lambda folder: in_two_files(folder, other="two.safetensors"),
        "do not agree about other",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "a broken tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is not a tokenizer"),
    "a tokenizer of another model": (larger_tokenizer, "the tokenizer has token 9., but the model has only 64 tokens"),
    "no folder": (shutil.rmtree, "is not a folder"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_with_a_reason(damage: str, folder: Path) -> None:
    break_it, words = DAMAGES[damage]
    break_it(folder)
    with pytest.raises(BadVersionFolder, match=words):
        read_model(folder)


def test_weights_may_be_split_over_several_files(folder: Path, qwen2: Path) -> None:
    in_two_files(folder)
    assert read_model(folder).tensors.keys() == read_model(qwen2).tensors.keys()


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_a_tokenizer_keeps_spaces_for_every_model_type(kind: str, request: pytest.FixtureRequest) -> None:
    folder_tokenizer = FolderTokenizer(request.getfixturevalue(kind))
    text = "sort: 9 1\n5 ="
    tokens = folder_tokenizer.encode(text)
    assert len(tokens) == len(text)
    assert folder_tokenizer.decode([*tokens, END]) == text, "special tokens are not part of the text"


def test_a_chat_is_formatted_by_the_folders_template_and_needs_one(folder: Path) -> None:
    with pytest.raises(BadVersionFolder, match="no chat template"):
        FolderTokenizer(folder).encode("hello", chat=True)
    template = "{% for turn in messages %}{{ turn['role'] }}: {{ turn['content'] }}\n{% endfor %}> "
    rewrite_json(folder / "tokenizer_config.json", chat_template=template)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    chat = FolderTokenizer(folder)
    assert chat.decode(chat.encode("hello", chat=True)) == "user: hello\n> "
    rewrite_json(folder / "tokenizer_config.json", chat_template="{{ raise_exception('no') }}")
    with pytest.raises(BadVersionFolder, match="chat template fails"):
        FolderTokenizer(folder).encode("hello", chat=True)


def test_a_chat_has_the_same_tokens_on_every_date(folder: Path) -> None:
    """Some published templates write today's date into the prompt."""
    date = "{{ strftime_now('%d') if strftime_now is defined else 'some' }}"
    rewrite_json(folder / "tokenizer_config.json", chat_template=f"{date} day")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    chat = FolderTokenizer(folder)
    assert chat.decode(chat.encode("hello", chat=True)) == "some day"
    rewrite_json(folder / "tokenizer_config.json", chat_template="{{ strftime_now('%d') }}")
    with pytest.raises(BadVersionFolder, match="chat template fails: 'the_date_of_today' is undefined"):
        FolderTokenizer(folder).encode("hello", chat=True)


CHAT = "<begin>{% for turn in messages %}{{ turn['content'] | trim }}<end>{% endfor %}<begin>"


@pytest.mark.parametrize(
    "text", ["<end>", "a<end><begin>b", "<e<end>nd>", "  <pad>\n", "(<unknown>)", "7 < 9 > 3", "\ue0000"]
)
def test_no_user_text_becomes_a_control_token(text: str, folder: Path) -> None:
    rewrite_json(folder / "tokenizer_config.json", chat_template=CHAT)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    one = FolderTokenizer(folder)
    characters = [CHARACTERS.index(each) if each in CHARACTERS else UNKNOWN for each in text]
    assert one.encode(text) == one.encode_answer(text) == characters
    trimmed = characters[len(text) - len(text.lstrip()) : len(text.rstrip())]
    assert one.encode(text, chat=True) == [BEGIN, *trimmed, END, BEGIN], "those of the template are control tokens"


def test_a_chat_includes_the_system_turn_and_options_of_the_recipe(folder: Path) -> None:
    turns = "{% for turn in messages %}{{ turn['role'] }}: {{ turn['content'] }}\n{% endfor %}"
    rewrite_json(folder / "tokenizer_config.json", chat_template=turns + "{{ mood | default('calm') }}> ")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    one = FolderTokenizer(folder)
    form = ChatFormat(system="be brief", template={"mood": "glad"})
    assert one.decode(one.encode("hello", chat=form)) == "system: be brief\nuser: hello\nglad> "
    assert one.decode(one.encode("hello", chat=ChatFormat())) == "user: hello\ncalm> "
    assert one.encode("hello", chat=ChatFormat()) == one.encode("hello", chat=True)


def test_a_system_turn_cannot_contain_a_control_token(folder: Path) -> None:
    rewrite_json(folder / "tokenizer_config.json", chat_template=CHAT)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokens = FolderTokenizer(folder).encode("b<end>", chat=ChatFormat(system="<begin>a"))
    characters = [[CHARACTERS.index(each) for each in text] for text in ("<begin>a", "b<end>")]
    assert tokens == [BEGIN, *characters[0], END, *characters[1], END, BEGIN]


@pytest.mark.parametrize("name", ["tokenize", "messages", "strftime_now", "_x", "a b", ""])
def test_an_option_unknown_to_the_template_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        ChatFormat(template={name: True})


def test_unicode_normalisation_hides_no_control_token(folder: Path) -> None:
    """The tokenizer decides which text is a control token: this one ignores case and leading spaces."""
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text())
    for added in value["added_tokens"]:
        added |= {"normalized": True, "lstrip": True}
    path.write_text(json.dumps(value | {"normalizer": {"type": "Lowercase"}}))
    rewrite_json(folder / "tokenizer_config.json", chat_template=CHAT)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    one = FolderTokenizer(folder)
    assert one.decode(one.encode("a  <END>", chat=True)) == one.decode(one.encode("a  <END>")) == "a  <end>"


class Yielding:
    """A tokenizer that lets other threads run between setting its mode and using it."""

    def __init__(self, backend: Any) -> None:
        self.__dict__["backend"] = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["backend"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["backend"], name, value)

    def encode(self, text: str, **how: Any) -> Any:
        time.sleep(0.002)
        return self.__dict__["backend"].encode(text, **how)


def test_threads_sharing_a_tokenizer_get_the_same_tokens_as_alone(folder: Path) -> None:
    rewrite_json(folder / "tokenizer_config.json", chat_template=CHAT)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    shared = FolderTokenizer(folder)
    alone = {chat: shared.encode("a<end>b", chat=chat) for chat in (False, True)}
    shared._backend = Yielding(shared._backend)
    with ThreadPoolExecutor(2) as threads:
        tokens = list(threads.map(lambda place: shared.encode("a<end>b", chat=bool(place % 2)), range(20)))
    assert all(found == alone[bool(place % 2)] for place, found in enumerate(tokens))


@pytest.mark.parametrize(
    ("characters", "pieces"),
    [
        ("a|<0xC3>|<0xA9>|b", "a||é|b|"),
        ("a|<0xF0>|<0x9F>|<0x98>|<0x80>|a", "a||||😀|a|"),
        ("a|<0xF0>|a", "a||\ufffda|"),
        ("a|<0x0A>|<0xF0>|a|b|a", "a|\n||\ufffda|b|a|"),
        ("a|<0xF0>", "a||\ufffd"),
    ],
)
def test_a_stream_goes_on_after_bytes_that_are_no_character(folder: Path, characters: str, pieces: str) -> None:
    """Byte fallback decodes bytes beside each other together, so that a later byte may change earlier text."""
    vocabulary = {"<unk>": 0, "a": 1, "b": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    fallback = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    fallback.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    made: Any = PreTrainedTokenizerFast
    made(tokenizer_object=fallback, unk_token="<unk>").save_pretrained(folder)
    stream = FolderTokenizer(folder).text_stream()
    found = [stream.add(vocabulary[character]) for character in characters.split("|")]
    assert [*found, stream.end()] == pieces.split("|")


def test_a_tokenizer_that_emits_control_tokens_for_plain_text_is_refused(folder: Path) -> None:
    """A unigram model splits "<s>" into the piece of that name, which is the control token."""
    pieces = [("<unk>", 0.0), ("<s>", -1.0), *((each, -9.0) for each in "<s>ab")]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=0))
    made: Any = PreTrainedTokenizerFast
    made(tokenizer_object=unigram, bos_token="<s>", unk_token="<unk>").save_pretrained(folder)
    one = FolderTokenizer(folder)
    assert one.encode("ab") == [5, 6]
    for chat in (False, True):
        rewrite_json(folder / "tokenizer_config.json", chat_template="{{ messages[0]['content'] }}")
        with pytest.raises(BadVersionFolder, match="encodes ordinary text as the control token <s>"):
            FolderTokenizer(folder).encode("a<s>b", chat=chat)


def test_tokens_that_a_tokenizer_adds_around_every_text_are_kept(folder: Path) -> None:
    framed = Tokenizer.from_file(str(folder / "tokenizer.json"))
    framed.post_processor = processors.TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", BEGIN)])
    framed.save(str(folder / "tokenizer.json"))
    one = FolderTokenizer(folder)
    a = CHARACTERS.index("a")
    assert (one.encode("a"), one.encode_answer("a")) == ([BEGIN, a], [a])


def test_a_folder_with_a_missing_or_unusable_tokenizer_is_refused(folder: Path) -> None:
    for nothing in ("{", '{"model": {"type": "Unigram", "vocab": []}, "decoder": {"type": "none"}}'):
        (folder / "tokenizer.json").write_text(nothing)
        with pytest.raises(BadVersionFolder, match="can't be used"):
            FolderTokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadVersionFolder, match=r"has no tokenizer\.json"):
        FolderTokenizer(folder)


def rewrite(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(fields))


OTHER_TOKENS: dict[str, tuple[Callable[[Path], object], bool]] = {
    "nothing": (lambda _: None, True),
    "the same control token": (lambda folder: rewrite_json(folder / "tokenizer_config.json", sep_token="<end>"), True),
    "no configuration": (lambda folder: (folder / "tokenizer_config.json").unlink(), True),
    "a control token that is a letter": (
        lambda folder: rewrite_json(folder / "tokenizer_config.json", sep_token="q"),
        False,
    ),
    "a list of control tokens": (
        lambda folder: rewrite_json(folder / "tokenizer_config.json", extra_special_tokens=["q"]),
        False,
    ),
    "added tokens by number": (
        lambda folder: rewrite_json(
            folder / "tokenizer_config.json",
            added_tokens_decoder={"64": {"content": "<new>", "special": False}, "1": {"content": "<end>"}},
        ),
        False,
    ),
    "a list of an older release": (
        lambda folder: rewrite(folder / "special_tokens_map.json", mask_token={"content": "q", "lstrip": False}),
        False,
    ),
    "added tokens of an older release": (lambda folder: rewrite(folder / "added_tokens.json", q=30), False),
}


@pytest.mark.parametrize(("change", "is_plain"), OTHER_TOKENS.values(), ids=OTHER_TOKENS)
def test_text_for_display_is_decoded_as_by_the_models_tokenizer(
    folder: Path, change: Callable[[Path], object], is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(folder)
    tokens = [*range(VOCABULARY + 1), END, 30, PAD, 31]
    expected = FolderTokenizer(folder).decode(tokens)
    if is_plain:
        monkeypatch.setattr("rollouts.models.tokenizer.FolderTokenizer", None)
    assert TextDecoder(folder).decode(tokens) == expected


def test_text_for_display_needs_a_readable_tokenizer(folder: Path) -> None:
    for damage in ("{}", "{", ""):
        (folder / "tokenizer_config.json").write_text(damage)
        (folder / "tokenizer.json").write_text(damage)
        with pytest.raises(BadVersionFolder, match="can't be used"):
            TextDecoder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadVersionFolder, match=r"has no tokenizer\.json"):
        TextDecoder(folder)
