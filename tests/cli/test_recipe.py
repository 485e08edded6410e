"""`muster recipe init`: a recipe that the trainer and the tasks accept, or a reason before anything is written."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from protocol.errors import InvalidInput
from protocol.identifiers import address
from rollouts.authoring.recipe_proposal import check_recipe
from rollouts.dialogue.formats import FormatName
from rollouts.environments import load_environment
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlanner
from rollouts.recipe import DialogueChoice, EnvironmentChoice, eligible_prompts, read_recipe
from tests.kit.devnet import run_muster
from tests.kit.tiny_model import CONTEXT, rewrite_json, tiny_folder
from trainer.policy.base_model import open_base

torch.set_num_threads(1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Returns a model without a recipe, with a context of 256 tokens."""
    return tiny_folder(tmp_path / "model")


def test_a_written_recipe_is_accepted_by_the_trainer_and_the_tasks(model: Path) -> None:
    shown = run_muster("recipe", "init", str(model), "--environment", "letters", "-o", "filler=true", "--json").json()
    assert (shown["context"], shown["max_new_tokens"], shown["max_prompt_tokens"]) == (CONTEXT, CONTEXT // 2, 64)
    assert shown["row_tokens"] == CONTEXT // 2 + 64
    recipe = read_recipe(model)
    assert recipe.environment.version.startswith("1+")
    assert (recipe.environment.options, recipe.chat, recipe.prompts.count) == ({"filler": True}, False, 20_000)
    assert open_base(model).recipe == recipe
    environment = load_environment("letters", version=recipe.environment.version, options=recipe.environment.options)
    planner = SlotPlanner(
        recipe=recipe,
        eligible=eligible_prompts(model, recipe),
        environment=environment,
        tokenizer=FolderTokenizer(model),
    )
    assert len(planner.plan(b"\7" * 32, groups=8).groups) == 8


def test_recipe_options_are_written_to_the_recipe(model: Path) -> None:
    options = ["--max-new-tokens", "9", "--max-prompt-tokens", "20", "--group-size", "4", "--held-out", "0.1"]
    prompts = ["--first", "5", "--count", "7", "--arithmetic", "vllm/bfloat16", "--temperature", "0.8"]
    written = run_muster("recipe", "init", str(model), "--environment", "letters", *options, *prompts)
    assert "files of vllm/bfloat16 are checked with wide limits" in " ".join(written.err.split())
    recipe = read_recipe(model)
    assert (recipe.sampling.max_new_tokens, recipe.max_prompt_tokens, recipe.group_size) == (9, 20, 4)
    assert (recipe.held_out, recipe.arithmetic, recipe.sampling.temperature) == (0.1, ("vllm/bfloat16",), 0.8)
    assert recipe.prompts.model_dump() == {"kind": "range", "first": 5, "count": 7}


def test_a_tokenizer_with_a_chat_template_gets_a_chat_recipe(model: Path) -> None:
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    rewrite_json(model / "tokenizer_config.json", chat_template=template)
    run_muster("recipe", "init", str(model), "--environment", "letters")
    assert read_recipe(model).chat
    run_muster("recipe", "init", str(model), "--environment", "letters", "--no-chat", "--force")
    assert not read_recipe(model).chat


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def with_chatml(folder: Path, template: str | None) -> Path:
    """Gives a model control tokens of ChatML, and perhaps a chat template."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text().replace("<end>", "<|im_end|>").replace("<begin>", "<|im_start|>")
        (folder / name).write_text(text)
    if template is not None:
        rewrite_json(folder / "tokenizer_config.json", chat_template=template)
    return folder


DIALOGUES = {
    "no chat": (None, [], ("plain", False)),
    "control tokens": ("", [], ("chatml", False)),
    "a template": (CHATML, [], ("template", True)),
    "a template that numbers turns": (CHATML.replace("role }}", "role }}{{ loop.index }}"), [], ("chatml", False)),
    "a choice": (CHATML, ["--dialogue-format", "chatml", "--system-prompt", "brief"], ("chatml", {"system": "brief"})),
    "no chat, by choice": (CHATML, ["--no-chat"], ("plain", False)),
}


@pytest.mark.parametrize(("template", "flags", "expected"), DIALOGUES.values(), ids=DIALOGUES.keys())
def test_a_dialogue_gets_the_first_format_that_suits_the_model(
    template: str | None, flags: list[str], expected: tuple[str, object], tmp_path: Path
) -> None:
    folder = tiny_folder(tmp_path / "model", max_position_embeddings=2048)
    if template is not None:
        with_chatml(folder, template or None)
    shown = run_muster(
        "recipe", "init", str(folder), "--environment", "lookup", "--max-new-tokens", "64", *flags, "--json"
    )
    assert shown.code == 0, shown.err
    recipe = read_recipe(folder)
    assert recipe.dialogue is not None
    chat = recipe.chat.model_dump(exclude_defaults=True) if isinstance(recipe.chat, ChatFormat) else recipe.chat
    assert (recipe.dialogue.format, chat) == expected
    assert recipe.dialogue.turns == shown.json()["dialogue_turns"] == 6, "twice the longest demonstration"
    assert shown.json()["row_tokens"] == recipe.row_tokens(2048)
    check_recipe(folder, recipe)
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    if recipe.dialogue.format != "plain":
        with pytest.raises(BadVersionFolder, match="ends the model's messages, but the model's answers end with 2"):
            check_recipe(folder, recipe)


def test_limits_of_dialogues_are_written_or_refused(model: Path) -> None:
    options = ["--turns", "3", "--reply-tokens", "20", "--dialogue-format", "plain", "--max-new-tokens", "20"]
    found = run_muster("recipe", "init", str(model), "--environment", "lookup", *options, "--json").json()
    assert found["row_tokens"] == found["max_prompt_tokens"] + 20 + 2 * 20 < CONTEXT
    written = read_recipe(model)
    assert written.dialogue == DialogueChoice(format=FormatName.PLAIN, turns=3, reply_tokens=20)
    options[3] = "200"
    wide = run_muster("recipe", "init", str(model), "--environment", "lookup", *options, "--json", "--force").json()
    assert wide["row_tokens"] == CONTEXT < 2 * wide["dialogue_reply_tokens"]
    refused = run_muster("recipe", "init", str(model), "--environment", "letters", "--turns", "3", "--force")
    assert "letters has single answers" in refused.err
    refused = run_muster(
        "recipe", "init", str(model), "--environment", "lookup", "--dialogue-format", "chatml", "--force"
    )
    assert "has no control token <|im_start|>" in refused.err
    for recipe, why in [
        (written.model_copy(update={"dialogue": None}), "has several turns, but the recipe has no field dialogue"),
        (
            written.model_copy(update={"environment": EnvironmentChoice(name="letters", version="1")}),
            "has single answers, but the recipe has the field dialogue",
        ),
    ]:
        with pytest.raises(InvalidInput, match=why):
            check_recipe(model, recipe)


def test_a_system_prompt_and_template_options_are_written(model: Path) -> None:
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}{{ mood }}"
    rewrite_json(model / "tokenizer_config.json", chat_template=template)
    options = ["--system-prompt", "be brief", "--template-option", "mood=glad"]
    assert run_muster("recipe", "init", str(model), "--environment", "letters", *options).code == 0
    written = json.loads((model / "recipe.json").read_text())
    assert written["chat"] == {"system": "be brief", "template": {"mood": "glad"}}
    assert open_base(model).recipe.chat == ChatFormat(system="be brief", template={"mood": "glad"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--environment", "leters"], "did you mean letters"),
        (["--environment", "letters", "--chat"], "has no chat template"),
        ([], "environment is missing"),
        (["--environment", "math"], "math: path is missing"),
        (["--environment", "letters", "--no-chat", "--system-prompt", "hi"], "--no-chat excludes"),
        (
            ["--environment", "letters", "--template-option", "tokenize=true"],
            "tokenize can't be an option",
        ),
        (["--environment", "letters", "--max-new-tokens", "250"], "has 12 tokens, but the limit is 6"),
        (["--environment", "letters", "--max-new-tokens", "256"], "exceed the model's context of 256"),
        (["--environment", "letters", "--max-prompt-tokens", "250"], "exceed the model's context of 256"),
        (["--environment", "letters", "--max-prompt-tokens", "3"], "but the limit is 3"),
        (["--environment", "letters", "--arithmetic", "cuda/int8"], "use torch/float32, torch/bfloat16"),
        (["--environment", "letters", "--temperature", "-1"], "sampling.temperature|temperature: "),
        (["--environment", "letters", "--first", str(2**63 - 2)], "is beyond the last index"),
    ],
)
def test_unsuitable_options_are_refused_and_no_recipe_is_written(model: Path, options: list[str], said: str) -> None:
    found = run_muster("recipe", "init", str(model), *options)
    assert found.code == 1
    assert any(part in found.err for part in said.split("|")), found.err
    assert not (model / "recipe.json").exists()


@pytest.mark.parametrize(("limit", "warned"), [(4, True), (16, False)])
def test_answers_that_are_too_short_for_the_demonstrations_cause_a_warning(
    model: Path, limit: int, warned: bool
) -> None:
    found = run_muster("recipe", "init", str(model), "--environment", "letters", "--max-new-tokens", str(limit))
    assert found.code == 0
    assert ("letters demonstrates an answer of" in found.err) is warned, found.err


def test_a_hint_names_no_limit_that_the_context_alone_sets(model: Path) -> None:
    found = run_muster("recipe", "init", str(model), "--environment", "letters", "--max-new-tokens", "250")
    assert "the model's context is 256, and answers have up to 250" in " ".join(found.err.split())
    assert "--max-prompt-tokens" not in found.err


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mixture"])
def test_a_data_set_that_changed_is_refused_with_what_to_do(
    model: Path, tmp_path: Path, mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(answer: str) -> bytes:
        info = {"ground_truth": answer}
        row = {"problem_id": "p", "task_type": "verifiable_math", "prompt": "What?", "verification_info": info}
        return json.dumps(row).encode() + b"\n"

    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_bytes(rows("7"))
    math: dict[str, JsonValue] = {"path": "rows.jsonl", "sha256": hashlib.sha256(rows("7")).hexdigest()}
    name, options = ("mixture", {"environments": [{"name": "math", "options": math}]}) if mixed else ("math", math)
    Path("options.json").write_text(json.dumps(options))
    init = ("recipe", "init", str(model), "--environment", name, "-o", "@options.json", "--held-out", "0")
    assert run_muster(*init).code == 0
    Path("rows.jsonl").write_bytes(rows("8"))
    for arguments in (
        (*init, "--force"),
        ("trainer", "try", str(model), "--steps", "1", "--device", "cpu"),
        ("trainer", "eval", str(model), "--device", "cpu"),
    ):
        found = run_muster(*arguments)
        assert found.code == 1, found.out
        digest = hashlib.sha256(rows("8")).hexdigest()
        assert f"rows.jsonl has the SHA-256 {digest}, but the options name" in found.err
        assert ("part 1 (math)" in found.err) is mixed
        assert "fetch the file whose digest the options name" in found.err


def test_a_mixture_from_a_file_gives_a_recipe_that_measures_each_environment(model: Path, tmp_path: Path) -> None:
    """The longest prompts belong to the part with the smaller weight."""
    options = tmp_path / "mixture.toml"
    options.write_text(
        '[[environments]]\nname = "letters"\nweight = 9\n'
        '[[environments]]\nname = "arithmetic"\noptions = { form = "question", digits = 18 }\n'
    )
    arguments = ("recipe", "init", str(model), "--environment", "mixture", "-o", f"@{options}", "--json")
    shown = run_muster(*arguments, "--max-new-tokens", "16").json()
    recipe = read_recipe(model)
    assert len(recipe.environment.version) <= 64
    assert shown["longest_prompt_tokens"] > 40, "letters have at most 12"
    environment = load_environment("mixture", version=recipe.environment.version, options=recipe.environment.options)
    assert environment.size() is None
    assert open_base(model).recipe == recipe


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.toml", "environments = 3 4", "is not TOML"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "[1]", "has no table of options"),
        ("a.toml", "digits = 2026-01-01", "is not TOML"),
        ("a.json", " " * (1 << 18) + "{}", "has more than 262144 bytes"),
        ("absent.json", None, "can't be read: No such file"),
        (".", None, "can't be read: Is a directory"),
    ],
)
def test_an_options_file_that_can_not_be_used_is_refused(
    model: Path, tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    found = run_muster("recipe", "init", str(model), "--environment", "arithmetic", "-o", f"@{path}")
    assert (found.code, said in found.err) == (1, True), found.err


def test_options_after_a_file_replace_those_of_the_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"digits": 2, "operations": ["+"]}')
    options = ("-o", f"@{tmp_path / 'options.json'}", "-o", "digits=3")
    assert run_muster("recipe", "init", str(model), "--environment", "arithmetic", *options).code == 0
    assert read_recipe(model).environment.options == {"digits": 3, "operations": ["+"]}


def test_at_a_terminal_missing_values_are_asked_for_with_defaults(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = tmp_path / "problems.jsonl"
    info = {"ground_truth": "3"}
    row = {"problem_id": "1", "task_type": "verifiable_math", "prompt": "1+2=?", "verification_info": info}
    problems.write_text(json.dumps(row) + "\n")
    typed = io.StringIO(f"math\n{problems}\n\n")  # an empty line takes the default: the digest of the file
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", typed)
    said = run_muster("recipe", "init", str(model))
    assert said.code == 0, said.err
    digest = hashlib.sha256(problems.read_bytes()).hexdigest()
    assert read_recipe(model).environment.options == {"path": str(problems), "sha256": digest}
    assert "installed: arithmetic, code, letters, lookup, math, mixture, python, reasoning-gym, search" in said.err


def test_values_typed_at_a_terminal_are_parsed_like_those_of_the_flag(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = io.StringIO('[{"name": "letters"}, {"name": "arithmetic", "weight": 2}]\n')
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", typed)
    said = run_muster("recipe", "init", str(model), "--environment", "mixture")
    assert said.code == 0, said.err
    assert read_recipe(model).environment.options["environments"] == [
        {"name": "letters"},
        {"name": "arithmetic", "weight": 2},
    ]


def test_rows_of_the_trainer_that_are_too_short_are_named(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "long", max_position_embeddings=4096)
    said = run_muster("recipe", "init", str(folder), "--environment", "letters", "--max-new-tokens", "2000")
    assert said.code == 0
    assert "set learning.row_tokens to 2064 or more" in " ".join(said.err.split())


def test_a_served_recipe_names_the_gateway_and_leaves_sampling_to_its_clients(model: Path) -> None:
    gateway = "0x" + "ab" * 20
    init = ("recipe", "init", str(model), "--environment", "served", "-o")
    for options, said in (
        (("gateway=me",), "gateway"),
        ((f"gateway={gateway}", "--group-size", "4"), "no choice of group size"),
        ((f"gateway={gateway}", "--chat", "--held-out", "0"), "no choice of chat, held out"),
        ((f"gateway={gateway}", "--max-new-tokens", str(CONTEXT)), "exceed the model's context"),
    ):
        refused = run_muster(*init, *options)
        assert refused.code == 1
        assert said in " ".join(refused.err.split())
        assert not (model / "recipe.json").exists()
    shown = run_muster(*init, f"gateway={gateway}", "--max-new-tokens", "32", "--json").json()
    assert (shown["max_new_tokens"], shown["max_prompt_tokens"], shown["measured_prompts"]) == (32, CONTEXT - 1, 0)
    recipe = read_recipe(model)
    assert recipe.gateway == address(gateway)
    assert (recipe.group_size, recipe.held_out, recipe.sampling.max_new_tokens) == (1, 0, 32)
    with pytest.raises(InvalidInput, match="clients of a gateway"):
        open_base(model)
    for arguments in (("trainer", "try", str(model), "--steps", "1"), ("trainer", "eval", str(model))):
        refused = run_muster(*arguments, "--device", "cpu")
        assert refused.code == 1
        assert "come from the clients of a gateway" in " ".join(refused.err.split())


def test_a_folder_without_a_model_and_an_existing_recipe_are_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "config.json" in run_muster("recipe", "init", str(tmp_path / "empty"), "--environment", "letters").err
    (model / "recipe.json").write_text("mine")
    assert "--force" in run_muster("recipe", "init", str(model), "--environment", "letters").err
    assert (model / "recipe.json").read_text() == "mine"
