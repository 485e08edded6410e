"""`python -m rollouts.recompute.program`: recomputes rollouts with vLLM for the process that started it.

The process reads requests from standard input and writes replies to standard output (`rollouts.recompute.messages`);
output of libraries goes to standard error. The process ends when its input ends. It has no key and no secret.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, BinaryIO

from pydantic import BaseModel

from protocol.errors import MusterError
from rollouts.checks import compare, prefill_items
from rollouts.engines.errors import NothingLoaded
from rollouts.files.limits import ReadLimits
from rollouts.files.packed_format import pack, unpack
from rollouts.files.samples import RolloutFile
from rollouts.files.synthetic_files import unleased_header, unrewarded_sample
from rollouts.models.devices import find_device
from rollouts.recompute.messages import (
    REQUEST,
    Compare,
    Done,
    EvidenceReply,
    Failed,
    Generate,
    GeneratedReply,
    LoadVersion,
    Opened,
    OpenEngine,
    Request,
    encode,
    pack_evidence,
    read_message,
    unpack_requests,
)
from rollouts.sampling.parameters import SamplingParameters

if TYPE_CHECKING:
    from rollouts.engines.vllm.engine import VllmEngine

_SET_DEATH_SIGNAL = 1
"""Option of prctl(2): PR_SET_PDEATHSIG."""
_ROWS = 64
"""Maximum rows in a step of a prefill."""
_NO_LIMITS = ReadLimits(rows=1 << 31, decoded_bytes=1 << 40, tokens=1 << 31)
"""This process needs no limits: the process that sends the file has checked it against limits of its own."""


class _Recomputing:
    """Carries out requests."""

    def __init__(self) -> None:
        self._engine: VllmEngine | None = None

    def do(self, request: Request, body: bytes) -> tuple[BaseModel, bytes]:
        """Returns the head and body of the reply.

        Raises:
            MusterError: The request can't be carried out.
        """
        if isinstance(request, OpenEngine):
            return self._open(request), b""
        if self._engine is None:
            raise NothingLoaded("no engine is open in this process")
        if isinstance(request, LoadVersion):
            self._engine.load(request.folder, version=request.digest)
            return Done(), b""
        if isinstance(request, Generate):
            return GeneratedReply(), self._generate(self._engine, request, body)
        return EvidenceReply(), self._compare(self._engine, request, body)

    def _open(self, request: OpenEngine) -> Opened:
        from rollouts.engines.vllm.engine import VllmEngine  # noqa: PLC0415 - fails where vLLM is not installed

        device = find_device(request.device)
        self._engine = VllmEngine(
            dtype=request.dtype,
            device=device,
            device_class=request.device_class,
            max_batch=request.batch or _ROWS,
            prefill_only=request.batch is None,
        )
        return Opened(arithmetic=self._engine.arithmetics[0])

    def _compare(self, engine: VllmEngine, request: Compare, body: bytes) -> bytes:
        file = unpack(body, limits=_NO_LIMITS)
        rows = dict(enumerate(request.each()))
        found = compare(engine.prefill(prefill_items(file, rows)), file, rows)
        return pack_evidence([found[row] for row in rows])

    def _generate(self, engine: VllmEngine, request: Generate, body: bytes) -> bytes:
        requests = unpack_requests(body)
        drawn = engine.generate(requests, SamplingParameters(**request.parameters))
        prompts = {one.sample: one.prompt_tokens for one in requests}
        rows = tuple(unrewarded_sample(one, prompt=prompts[one.sample]) for one in drawn)
        return pack(RolloutFile(unleased_header(arithmetic=engine.arithmetics[0]), rows))


def _end_with_parent() -> None:
    """Makes Linux kill this process when its parent ends, even in the middle of a prefill."""
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError("the death signal can't be set")


def main() -> None:
    """Answers requests until the standard input ends."""
    _end_with_parent()
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not write to stdout between the replies
    recomputing = _Recomputing()
    while (message := read_message(requests)) is not None:
        head, body = message
        try:
            reply, content = recomputing.do(REQUEST.validate_json(head), body)
        except ImportError as error:
            detail = f"vLLM can't be imported: {error}"
            reply, content = Failed(error="NotFound", code="not-found", detail=detail, hint=""), b""
        except MusterError as error:
            reply, content = (
                Failed(error=type(error).__name__, code=error.code, detail=error.detail, hint=error.hint or ""),
                b"",
            )
        except Exception as error:  # noqa: BLE001 - the reply reports it to the process that sent the request
            traceback.print_exc()
            line = (str(error).splitlines() or [""])[0][:300]
            reply, content = (
                Failed(error="EngineFailed", code="engine-failed", detail=f"{type(error).__name__}: {line}", hint=""),
                b"",
            )
        _write(replies, encode(reply, content))


def _write(replies: BinaryIO, message: bytes) -> None:
    replies.write(message)
    replies.flush()


if __name__ == "__main__":
    main()
    # Ends without freeing objects: that would take torch and vLLM two seconds, and nothing needs to be closed.
    sys.stderr.flush()
    os._exit(0)
