"""Messages between the service and its examiner processes: a length and JSON. Both ends are ours."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Discriminator

from protocol.identifiers import Digest
from rollouts.files.schema import ReadLimits
from rollouts.precision import Dtype
from validator.audit.draw import RowDraw
from validator.domain.submissions import WorkFacts
from validator.examination.interface import Conclusion, HashedFile, NotJudged
from validator.examination.orders import Order

_LENGTH = 4


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StartExaminer(_Message):
    """The first one to a process: what it works with, for as long as it lives."""

    calibration: Path | None
    device: str | None
    dtype: Dtype | None
    threads: int
    policy_memory: int | None
    """None for a share of the device's memory, which `processes` share."""
    processes: int
    margin: float
    scoring: timedelta
    most: ReadLimits


class ExaminerReady(_Message):
    """The first one back: it can take orders."""

    kind: Literal["ready"] = "ready"


class TryOut(_Message):
    """Request to test everything that an examination needs; answered by an `ExaminationReply` without conclusion."""

    kind: Literal["try-out"] = "try-out"


class Request(_Message):
    """One file to examine."""

    kind: Literal["request"] = "request"
    facts: WorkFacts
    file: Path | HashedFile
    folder: Path
    seed: str | None
    """Hex."""
    share: float

    @classmethod
    def of(cls, order: Order) -> Request:
        """An order, written down."""
        seed = None if order.draw.seed is None else order.draw.seed.hex()
        return cls(facts=order.facts, file=order.file, folder=order.folder, seed=seed, share=order.draw.share)

    @property
    def order(self) -> Order:
        """The order that was written down."""
        seed = None if self.seed is None else bytes.fromhex(self.seed)
        draw = RowDraw(seed=seed, share=self.share)
        return Order(facts=self.facts, file=self.file, folder=self.folder, draw=draw)


class Question(_Message):
    """Back, in the midst of an examination: whether other work has these outputs."""

    kind: Literal["question"] = "question"
    fingerprint: Digest


class Reply(_Message):
    """To it, in answer."""

    copy_found: bool | None
    """None if nobody can say: the examination is given up."""


class ExaminationReply(_Message):
    """Back, at its end."""

    kind: Literal["answer"] = "answer"
    conclusion: Conclusion | None = None
    not_judged: NotJudged | None = None
    ends: bool = False
    """Whether the process ends now because its accelerator can't be trusted any more."""


class Orders(_Message):
    """Anything that a process is told after its start, but the reply to a question of its own."""

    order: Annotated[Request | TryOut, Discriminator("kind")]


class Reports(_Message):
    """Anything that comes back."""

    report: ExaminerReady | Question | ExaminationReply


def write(stream: BinaryIO, message: BaseModel) -> None:
    """Sends a message from a process."""
    content = message.model_dump_json().encode()
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)
    stream.flush()


def read(stream: BinaryIO) -> bytes | None:
    """The next message to a process; None at the end."""
    head = stream.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    length = int.from_bytes(head, "big")
    content = stream.read(length)
    return content if len(content) == length else None


async def send(stream: asyncio.StreamWriter, message: BaseModel) -> None:
    """Sends a message to a process.

    Raises:
        ConnectionError: It has ended.
    """
    content = message.model_dump_json().encode()
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)
    await stream.drain()


async def receive(stream: asyncio.StreamReader) -> ExaminerReady | Question | ExaminationReply:
    """The next message of a process.

    Raises:
        asyncio.IncompleteReadError: It has ended.
        ValidationError: It speaks another language.
    """
    length = int.from_bytes(await stream.readexactly(_LENGTH), "big")
    return Reports.model_validate_json(await stream.readexactly(length)).report
