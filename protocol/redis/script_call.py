"""Typed calls of Lua scripts, with named arguments and replies in Python and Lua.

A call is a frozen dataclass derived from `ScriptCall`. It is declared in the package that contains the Lua files. The
class `DeleteTask`, for example, runs `delete_task.lua`, where its fields are local variables:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class DeleteTask(ScriptCall[bool]):
        task: str                        # local task = ARGV[1]
        now_ms: int                      # local now_ms = tonumber(ARGV[2])
        is_last: bool                    # local is_last = ARGV[3] == '1'
        deadline_ms: int | None          # nil if it is None
        fields: Mapping[str, str]        # a table by name; only the last field can be a mapping or a tuple

    deleted = await runner.run(DeleteTask(task="…", …))

The type parameter is the type of the reply. If it is a named tuple, the script returns `reply{name = value, …}`. A name
that the table omits becomes an empty string or tuple, 0 or False. The Lua lines that convert arguments and reply are
generated once, when a script is first used.

Each script's text is preceded by `scripts/prelude.lua` of this package and by the `prelude.lua` of its own folder. In a
script, `P` is the prefix of all keys. Scripts use only commands of Redis 6.2. With `ScriptRunner` a script may run
twice, because the Redis client repeats a call whose answer was lost. `orchestrator.store.database.Database`, which
overrides `_execute`, does not repeat such a call.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from importlib import resources
from types import NoneType, UnionType
from typing import Any, Generic, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from protocol.redis.connection import RedisKeys, store_errors

Argument = str | bytes | int | float
R = TypeVar("R")

_PRELUDE = resources.files("protocol.redis") / "scripts" / "prelude.lua"


class ScriptCall(Generic[R]):
    """One call of a Lua script whose reply has type `R`.

    Base class of the dataclasses that describe scripts.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Script:
    """The complete text of a script, and the functions that convert its arguments and reply."""

    text: str
    sha: str
    arguments: Callable[[ScriptCall[Any]], list[Argument]]
    """Function that returns the values of ARGV for a call."""
    decode: Callable[[Any], Any]
    """Function that converts Redis' answer into the reply."""


class ScriptRunner:
    """Runs typed Lua scripts for one service.

    Args:
        redis: Client with timeouts and retries.
        keys: Names of the service's keys. Scripts get their prefix as `P`.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys) -> None:
        self._redis: Any = redis  # redis-py does not annotate these commands
        self.prefix = keys.prefix
        self._with_constants: dict[type[ScriptCall[Any]], Script] = {}

    def set_constants(self, kind: type[ScriptCall[Any]], **constants: float) -> None:
        """Writes constants into the text of a script.

        For scripts that run too often to send the same values with each call.
        """
        self._with_constants[kind] = _build(kind, constants)

    async def run(self, call: ScriptCall[R]) -> R:
        """Runs a script and returns its reply.

        Raises:
            StoreUnavailable: Redis is down; the script may or may not have run.
        """
        script = self._script(type(call))
        reply: R = script.decode(await self._execute(script, script.arguments(call)))
        return reply

    async def run_many(self, calls: Sequence[ScriptCall[R]]) -> list[R]:
        """Runs several calls of one script in one round trip; returns their replies in order.

        Raises:
            StoreUnavailable: Redis is down; each call may or may not have run.
        """
        if not calls:
            return []
        script = self._script(type(calls[0]))
        with store_errors():
            async with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.script_load(script.text)
                for call in calls:
                    pipeline.evalsha(script.sha, 1, self.prefix, *script.arguments(call))
                _, *answers = await pipeline.execute()
        return [script.decode(answer) for answer in answers]

    def _script(self, kind: type[ScriptCall[Any]]) -> Script:
        return self._with_constants.get(kind) or script_of(kind)

    async def _execute(self, script: Script, arguments: Sequence[Argument]) -> Any:  # noqa: ANN401 - Redis' answer
        with store_errors():
            try:
                return await self._redis.evalsha(script.sha, 1, self.prefix, *arguments)
            except NoScriptError:  # Redis restarted and lost its scripts; EVAL stores the script again
                return await self._redis.eval(script.text, 1, self.prefix, *arguments)


_SCRIPTS: dict[type[ScriptCall[Any]], Script] = {}


def script_of(kind: type[ScriptCall[Any]]) -> Script:
    """Returns the script of a call class; reads its files at the first call.

    Raises:
        TypeError: A field has a type that can't be passed to Lua.
        ValueError: A field has the name of a local variable or function of the prelude.
    """
    if kind not in _SCRIPTS:
        _SCRIPTS[kind] = _build(kind, {})
    return _SCRIPTS[kind]


def _build(kind: type[ScriptCall[Any]], constants: Mapping[str, float]) -> Script:
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # subclasses are dataclasses
    reply = next(get_args(base)[0] for base in kind.__orig_bases__ if get_origin(base) is ScriptCall)  # type: ignore[attr-defined]
    reply = _resolve(reply, kind)
    folder = resources.files(kind.__module__)
    preludes = [file.read_text() for file in (_PRELUDE, folder / "prelude.lua") if file.is_file()]
    taken = set(re.findall(r"^local (?:function )?(\w+)", "\n".join(preludes), re.MULTILINE))
    if used := taken.intersection(names):
        raise ValueError(f"{kind.__name__}: the prelude defines {', '.join(sorted(used))}; rename these fields")
    text = "\n".join(
        [
            *(f"local {name} = {value!r}" for name, value in constants.items()),
            *preludes,
            *_argument_lines(names, hints),
            *_reply_lines(reply),
            (folder / f"{_file_name(kind)}.lua").read_text(),
        ]
    )
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(text, sha, _encoder(names, hints), _decoder(reply))


def _file_name(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _resolve(reply: Any, kind: type) -> Any:  # noqa: ANN401 - a type
    """Returns the type of a reply; looks up a forward reference in the module of `kind`."""
    holder = type("_Reply", (), {"__annotations__": {"reply": reply}, "__module__": kind.__module__})
    return get_type_hints(holder)["reply"]


def _plain(hint: Any) -> tuple[Any, bool]:  # noqa: ANN401 - a type
    """Returns the type inside `NewType` and `… | None`, and whether None is allowed."""
    optional = get_origin(hint) in {Union, UnionType}
    if optional:
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    return hint, optional


def _argument_lines(names: Sequence[str], hints: Mapping[str, Any]) -> Iterator[str]:
    """Yields Lua lines that assign each argument to a local variable."""
    for index, name in enumerate(names, start=1):
        hint, optional = _plain(hints[name])
        kind, value = get_origin(hint) or hint, f"ARGV[{index}]"
        if kind in {tuple, Mapping}:
            if index != len(names):
                raise TypeError(f"{name}: only the last field can be a mapping or a tuple")
            yield f"local {name} = {{}}"
            if kind is tuple:
                yield f"for i = {index}, #ARGV do {name}[i - {index - 1}] = ARGV[i] end"
            else:
                yield f"for i = {index}, #ARGV, 2 do {name}[ARGV[i]] = ARGV[i + 1] end"
        elif kind is bool:
            yield f"local {name} = {value} == '1'"
        elif issubclass(kind, int | float):
            yield f"local {name} = tonumber({value})"  # the empty string represents None, and `tonumber` makes it nil
        elif issubclass(kind, str | bytes):
            yield f"local {name} = {value}" + (f" ~= '' and {value} or nil" if optional else "")
        else:
            raise TypeError(f"{name}: {hint} can't be passed to Lua")


def _encoder(names: Sequence[str], hints: Mapping[str, Any]) -> Callable[[ScriptCall[Any]], list[Argument]]:
    """Returns a function that converts a call into the values of ARGV."""
    plain = [_plain(hints[name]) for name in names]
    booleans = [index for index, (kind, _) in enumerate(plain) if kind is bool]
    optional = [index for index, (_, allowed) in enumerate(plain) if allowed]
    last = get_origin(plain[-1][0]) if plain else None

    def encode(call: ScriptCall[Any]) -> list[Argument]:
        values: list[Any] = [getattr(call, name) for name in names]
        for index in booleans:
            values[index] = "1" if values[index] else "0"
        for index in optional:
            if values[index] is None:
                values[index] = ""
        if last is tuple:
            values += values.pop()
        elif last is Mapping:
            values += [part for pair in values.pop().items() for part in pair]
        return values

    return encode


def _reply_lines(reply: Any) -> Iterator[str]:  # noqa: ANN401 - a type
    """Yields the Lua function `reply`, which orders named values as `_decoder` expects."""
    if not hasattr(reply, "_fields"):
        return
    values = []
    for name, hint in get_type_hints(reply).items():
        kind, _ = _plain(hint)
        kind, value = get_origin(kind) or kind, f"t.{name}"
        if kind is bool:
            values.append(f"{value} and 1 or 0")
        elif kind in {tuple, dict}:
            values.append(f"{value} or {{}}")
        else:
            values.append(f"{value} or " + ("0" if issubclass(kind, int) else "''"))
    yield f"local function reply(t) return {{{', '.join(values)}}} end"


def _decoder(hint: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - a type
    """Returns a function that converts Redis' answer into a value of type `hint`.

    Raises:
        TypeError: No conversion from Redis' answer to this type is known.
    """
    hint, _ = _plain(hint)
    kind = get_origin(hint) or hint
    if hasattr(hint, "_fields"):
        decoders = [_decoder(each) for each in get_type_hints(hint).values()]
        return lambda answer: hint._make([decode(value) for decode, value in zip(decoders, answer, strict=True)])
    if kind is tuple:
        element = _decoder(get_args(hint)[0])
        return lambda answer: tuple([element(value) for value in answer])
    if issubclass(kind, Enum):
        raw = _DECODERS[int if issubclass(kind, int) else str]
        return lambda answer: kind(raw(answer))
    if kind not in _DECODERS:
        raise TypeError(f"no conversion from Redis' answer to {hint} is known")
    return _DECODERS[kind]


def _pairs(answer: Sequence[bytes]) -> dict[str, str]:
    """Returns a dictionary from a list of alternating names and values, as HGETALL gives."""
    texts = [part.decode() for part in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))


_DECODERS: dict[type, Callable[[Any], Any]] = {
    bool: lambda answer: int(answer) != 0,
    bytes: lambda answer: answer,
    dict: _pairs,
    int: int,
    str: bytes.decode,
}
