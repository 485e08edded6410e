"""Reads the list of requests in the file of a served slot: which request, seed and parameters each row belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from protocol.errors import InvalidInput
from protocol.identifiers import Address, Digest
from protocol.identity.typed_data import SigningDomain
from protocol.openai.bodies import parse_body
from protocol.openai.errors import InvalidRequest
from protocol.wire.served import ServedRequest
from rollouts.checks.evidence import Draws
from rollouts.engines.request_encoding import ModelFolder, encode, room
from rollouts.files.samples import RolloutFile
from rollouts.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """Values of a row that a client's request determines.

    Args:
        request: Position of the request in the list.
        choice: Index of the choice in the request's answer.
        prompt_tokens: Token ids of the prompt.
        draws: Seed and sampling parameters.
    """

    request: int
    choice: int
    prompt_tokens: tuple[int, ...]
    draws: Draws


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRows:
    """The rows that a list of requests determines.

    Args:
        requests: The requests; empty if the file has no valid list.
        rows: One item for each choice, in the order of the file's rows; incomplete if there are faults.
        faults: Why the list can't belong to the slot; empty if it does.
        has_known_signer: Whether the signature was compared with the version's gateway, for which the lease is needed.
        drawn_file: The file in which each sample has its choice's index as number.
    """

    requests: tuple[ServedRequest, ...]
    rows: tuple[ServedRow, ...]
    faults: tuple[str, ...]
    has_known_signer: bool
    drawn_file: RolloutFile


class Version(ModelFolder, Protocol):
    """The parts of an opened version that lists of requests need."""

    @property
    def recipe(self) -> Recipe:
        """The version's recipe."""


def read_served(
    file: RolloutFile,
    version: Version,
    *,
    work_key: Digest | None,
    domain: SigningDomain | None,
    new_tokens: int | None = None,
) -> ServedRows | None:
    """Reads the list of a served file; None if the version is not served.

    Args:
        file: The file, by an untrusted node.
        version: The version that the slot was leased for.
        work_key: Key of the slot's work; None if unknown.
        domain: Chain and contract of the ledger; None if unknown.
        new_tokens: The lease's limit of new tokens of an answer; None without a lease, for the recipe's limit.

    A request that a task would refuse is a fault of the node: tasks answer only requests that they accept, and the
    gateway lists only requests that were answered.
    """
    gateway = version.recipe.gateway
    if gateway is None:
        return None
    requests, faults, known = _requests(file, gateway, work_key=work_key, domain=domain)
    rows: list[ServedRow] = []
    for place, request in enumerate(() if faults else requests):
        try:
            rows += _rows(place, request, version, limit=new_tokens)
        except InvalidRequest as error:
            faults.append(f"request {place} of the list can't be answered: {error.detail}")
            break
    numbers = [row.choice for row in rows]
    samples = tuple(
        replace(sample, sample=numbers[place]) if place < len(numbers) else sample
        for place, sample in enumerate(file.samples)
    )
    return ServedRows(
        requests=tuple(requests),
        rows=tuple(rows),
        faults=tuple(faults),
        has_known_signer=known,
        drawn_file=RolloutFile(file.header, samples, file.served),
    )


def _requests(
    file: RolloutFile, gateway: Address, *, work_key: Digest | None, domain: SigningDomain | None
) -> tuple[Sequence[ServedRequest], list[str], bool]:
    """Returns the requests of the list, its faults, and whether the signature was compared."""
    if file.served is None:
        return (), ["the file has no list of served requests"], True
    try:
        requests = file.served.parse().requests
        if work_key is None or domain is None:
            return requests, [], False
        signer = file.served.signer(work_key=work_key, domain=domain)
    except InvalidInput as error:
        return (), [error.detail], True
    if signer != gateway:
        return requests, [f"{signer} signed the list for this slot, but the version's gateway is {gateway}"], True
    return requests, [], True


def _rows(place: int, request: ServedRequest, version: Version, *, limit: int | None) -> Iterator[ServedRow]:
    """Yields the rows of a request.

    Raises:
        InvalidRequest: The task would have refused the request.
    """
    body = parse_body(request.kind, request.body.encode())
    prompts = encode(body, version)
    new_tokens = served_new_tokens(body.new_tokens, prompts, version, limit=limit)
    draws = Draws(seed=bytes.fromhex(request.seed[2:]), parameters=body.sampling.parameters(new_tokens))
    each = body.sampling.n or 1
    if len(prompts) * each != request.choices:
        raise InvalidRequest("n", f"it has {request.choices} choices, but its body asks for {len(prompts) * each}")
    for number, prompt in enumerate(prompts):
        for choice in range(number * each, (number + 1) * each):
            yield ServedRow(request=place, choice=choice, prompt_tokens=tuple(prompt), draws=draws)


def served_new_tokens(
    asked: int | None, prompts: Sequence[Sequence[int]], version: Version, *, limit: int | None = None
) -> int:
    """Returns the limit of new tokens of a request to a served version.

    It is what the client asked for. Without a number of the client's, it is the room in the context, but not more than
    `limit`, which is the lease's number of work units per group; None for the recipe's limit.
    """
    most = version.recipe.sampling.max_new_tokens if limit is None else limit
    return min(room(prompts, version), most) if asked is None else asked
