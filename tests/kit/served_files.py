"""Makes a served version and honest rollout files of served slots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protocol.identifiers import Digest, address, digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.openai.bodies import parse_body
from protocol.wire.served import RequestKind, ServedList, ServedRequest, SignedServedList, answer_digest
from rollouts.checks import CheckedVersion, SlotFacts, open_version
from rollouts.checks.served_rows import served_new_tokens
from rollouts.engines.request_encoding import encode, sample_requests
from rollouts.engines.torch.engine import TorchEngine
from rollouts.files.samples import RolloutFile, Sample
from rollouts.files.synthetic_files import unrewarded_sample
from rollouts.precision import Dtype
from rollouts.recipe import serving_recipe, write_recipe
from tests.kit.rollout_files import CHAIN, facts_of, header_of
from tests.kit.serving import chat_folder

GATEWAY = Key(b"\6" * 32)
WORK_LEDGER = address("0x" + "c4" * 20)
DOMAIN = SigningDomain(CHAIN, WORK_LEDGER)
LIMIT = 24
SLOT_GROUPS = 16

Body = tuple[RequestKind, dict[str, Any]]

REQUESTS: tuple[Body, ...] = (
    (RequestKind.COMPLETION, {"model": "m", "prompt": ["12+34=", "1+1="], "max_tokens": 12, "n": 2, "seed": 5}),
    (RequestKind.CHAT, {"model": "m", "messages": [{"role": "user", "content": "7+8="}]}),
    (RequestKind.CHAT, {"model": "m", "messages": [{"role": "user", "content": "9"}], "temperature": 0}),
    (RequestKind.GENERATE, {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 9, "top_p": 0.7}}),
    (RequestKind.COMPLETION, {"model": "m", "prompt": "3*3=", "max_tokens": 7, "temperature": 0.6, "top_k": 9}),
)


def served_version(folder: Path, *, seed: int = 0) -> CheckedVersion:
    """Makes a tiny chat model a served version."""
    chat_folder(folder, seed=seed)
    write_recipe(folder, serving_recipe(GATEWAY.address, max_new_tokens=LIMIT, max_prompt_tokens=100))
    return open_version(folder)


def served_facts(version: CheckedVersion) -> SlotFacts:
    """The slot that the files are of, with its lease."""
    return replace(facts_of(version, groups=SLOT_GROUPS), domain=DOMAIN)


@dataclass(frozen=True, kw_only=True)
class Cheat:
    """How a node or a client's view differs from honest work.

    Args:
        weights: Folder of other weights.
        sampling: Options that replace those of every body when the node draws.
        texts: Text that clients got, by request; others got the honest one.
    """

    weights: Path | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)


def make_served(
    version: CheckedVersion, facts: SlotFacts, *, bodies: Sequence[Body] = REQUESTS, cheat: Cheat = Cheat()
) -> RolloutFile:
    """Returns the file of a slot that answered these requests."""
    engine = TorchEngine(dtype=Dtype.FLOAT32, max_batch=8)
    engine.load(cheat.weights or version.folder, version=version.digest)
    rows: list[Sample] = []
    requests: list[ServedRequest] = []
    for place, (kind, body) in enumerate(bodies):
        written = json.dumps(body)
        drawn = parse_body(kind, json.dumps(_with(kind, body, cheat.sampling)).encode())
        prompts = encode(drawn, version)
        seed = parse_body(kind, written.encode()).sampling.seed_bytes()
        new_tokens = served_new_tokens(drawn.new_tokens, prompts, version)
        asked = sample_requests(
            prompts, each=drawn.sampling.n or 1, seed=seed, version=version, new_tokens=new_tokens, param="prompt"
        )
        answers = sorted(engine.generate(asked, drawn.sampling.parameters(new_tokens)), key=lambda one: one.sample)
        shown = []
        for request, answer in zip(asked, answers, strict=True):
            row = len(rows)
            sample = unrewarded_sample(answer, prompt=request.prompt_tokens, group=row, prompt_index=place)
            rows.append(replace(sample, sample=row))
            text = "" if kind is RequestKind.GENERATE else version.tokenizer.decode(answer.tokens)
            shown.append((cheat.texts.get(place, text), answer.tokens))
        requests.append(
            ServedRequest(
                id=f"{place:032x}",
                kind=kind,
                body=written,
                seed=digest(seed),
                choices=len(asked),
                answer=answer_digest(shown),
            )
        )
    engine.close()
    file = RolloutFile(header_of(version, facts), tuple(rows))
    return with_list(file, requests, facts=facts)


def with_list(
    file: RolloutFile,
    requests: Sequence[ServedRequest],
    *,
    facts: SlotFacts,
    key: Key = GATEWAY,
    work_key: Digest | None = None,
) -> RolloutFile:
    """Returns the file with a list that a key signed for a slot."""
    of = work_key or facts.work_key
    assert of is not None
    signed = SignedServedList.sign(ServedList(requests=tuple(requests)), work_key=of, key=key, domain=DOMAIN)
    return RolloutFile(file.header, file.samples, signed)


def requests_of(file: RolloutFile) -> list[ServedRequest]:
    """Returns the requests of a file's list."""
    assert file.served is not None
    return list(file.served.parse().requests)


def _with(kind: RequestKind, body: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    if kind is RequestKind.GENERATE:
        return {**body, "sampling_params": {**body["sampling_params"], **sampling}}
    return {**body, **sampling}
