"""Builds an example of any wire model, with every optional field and every nested model filled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from protocol.enumerations import WireEnum
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Invite
from protocol.leases import Lease
from protocol.wire.base import SignedModel, WireModel
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import SignedLease

LATER = "later_field"
LATER_VALUE = "later-value"

KEY = Key(b"\x01" * 32)
DOMAIN = SigningDomain(5, KEY.address)
LEASE = Lease(
    pool_id=3,
    run=Digest("0x" + "0a" * 32),
    step=4,
    index=5,
    node=KEY.address,
    version=6,
    digest=Digest("0x" + "0b" * 32),
    beacon_block=7,
    salt=Digest("0x" + "0c" * 32),
    groups=8,
    max_units=9,
    expiry=10,
)
INVITE = Invite(pool_id=3, domain_id=1, node=KEY.address, nonce=9, expiry=1_795_741_200, url="https://pool.example")
SIGNED: dict[type[BaseModel], BaseModel] = {
    SignedLease: SignedLease.of(LEASE, domain=DOMAIN, signature=LEASE.sign(KEY, DOMAIN)),
    SignedInvite: SignedInvite.of(INVITE, domain=DOMAIN, signature=INVITE.sign(KEY, DOMAIN)),
}
OBJECT = f"3/{KEY.address}/{'0b' * 32}"
LEAVES: tuple[Any, ...] = (
    *("x", "stdout", False, 1, 0.5, True, "0" * 32, "0x" + "0b" * 32, "0b" * 32, KEY.address, "/data", "python:3.11"),
    *("https://pool.example", "1", "0x" + "0b" * 65, "sha256:" + "0b" * 32, "vllm-0.32.0/bfloat16/cpu-avx512_bf16"),
    *("float32", "application/json", "2026-01-01T00:00:00Z", {}, 2, 1 << 24, "1-1", "node.joined", OBJECT),
    "mlc_" + "0" * 43,
)


def wire_models(modules: Iterable[str]) -> list[type[WireModel]]:
    """Returns all models that are not signed, of some modules, which must be imported."""
    named = frozenset(modules)
    found: set[type[WireModel]] = set()
    waiting: list[type[WireModel]] = [WireModel]
    while waiting:
        for model in waiting.pop().__subclasses__():
            waiting.append(model)
            if not issubclass(model, SignedModel) and model.__module__ in named:
                found.add(model)
    return sorted(found, key=lambda model: (model.__module__, model.__name__))


def example(annotation: Any, *, extra: bool = False, later_values: bool = False) -> Any:
    """Returns JSON that a type accepts.

    Args:
        annotation: A wire model or the type of a field.
        extra: Whether every unsigned object has an unknown field.
        later_values: Whether every enumeration has an unknown value.
    """

    def build(kind: Any, metadata: tuple[Any, ...] = ()) -> Any:
        origin, parts = get_origin(kind), get_args(kind)
        if origin is Annotated:
            made = build(parts[0], (*metadata, *parts[1:]))
        elif origin in {Union, UnionType}:
            made = build(next(each for each in parts if each is not type(None)), metadata)
        elif origin in {tuple, list, frozenset}:
            made = [build(parts[0])]
        elif origin is dict:
            made = {str(build(parts[0])): build(parts[1])}
        elif isinstance(kind, type) and issubclass(kind, WireEnum):
            made = LATER_VALUE if later_values else next(iter(kind)).value
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            made = of_model(kind)
        else:
            made = leaf(kind, metadata)
        return made

    def of_model(model: type[BaseModel]) -> dict[str, Any]:
        if model in SIGNED:
            return SIGNED[model].model_dump(mode="json")
        made = {
            field.serialization_alias or field.alias or name: build(field.annotation, tuple(field.metadata))
            for name, field in model.model_fields.items()
        }
        return made | ({LATER: {"deep": [1]}} if extra and not issubclass(model, SignedModel) else {})

    return build(annotation)


def leaf(kind: Any, metadata: tuple[Any, ...]) -> Any:
    """Returns the first value that a type without parts accepts."""
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[(kind, *metadata)] if metadata else kind)
    for value in LEAVES:
        try:
            adapter.validate_json(json.dumps(value))
        except ValidationError:
            continue
        return value
    raise AssertionError(f"no example fits {kind} with {metadata}")


def enumerations(annotation: Any) -> Iterator[type[WireEnum]]:
    """Yields the enumerations in a type's fields, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, WireEnum):
        yield annotation
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for field in annotation.model_fields.values():
            yield from enumerations(field.annotation)
    for part in get_args(annotation):
        yield from enumerations(part)
