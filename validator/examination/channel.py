"""Messages between the service and its examiner processes: a length and JSON. Both ends are trusted."""

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
    """First message to a process: its settings."""

    calibration: Path | None
    device: str | None
    dtype: Dtype | None
    threads: int
    policy_memory: int | None
    """Bytes of weights; None for an equal share of the device's memory among `processes`."""
    processes: int
    margin: float
    scoring: timedelta
    most: ReadLimits


class ExaminerReady(_Message):
    """First message from a process: it is ready for orders."""

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
    """Digest in hex."""
    share: float

    @classmethod
    def of(cls, order: Order) -> Request:
        """Serialises an order."""
        seed = None if order.draw.seed is None else order.draw.seed.hex()
        return cls(facts=order.facts, file=order.file, folder=order.folder, seed=seed, share=order.draw.share)

    @property
    def order(self) -> Order:
        """Parses a serialised order."""
        seed = None if self.seed is None else bytes.fromhex(self.seed)
        draw = RowDraw(seed=seed, share=self.share)
        return Order(facts=self.facts, file=self.file, folder=self.folder, draw=draw)


class Question(_Message):
    """Question from a process during an examination: whether other work has these outputs."""

    kind: Literal["question"] = "question"
    fingerprint: Digest


class Reply(_Message):
    """Answer to a process's question."""

    copy_found: bool | None
    """None if the store is down; then the examination is given up."""


class ExaminationReply(_Message):
    """Result of an examination."""

    kind: Literal["answer"] = "answer"
    conclusion: Conclusion | None = None
    not_judged: NotJudged | None = None
    ends: bool = False
    """True if the process ends now because its accelerator is in an unknown state."""


class Orders(_Message):
    """Messages to a process after its start, except answers to its questions."""

    order: Annotated[Request | TryOut, Discriminator("kind")]


class Reports(_Message):
    """Messages from a process."""

    report: ExaminerReady | Question | ExaminationReply


def write(stream: BinaryIO, message: BaseModel) -> None:
    """Sends a message from a process."""
    content = message.model_dump_json().encode()
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)
    stream.flush()


def read(stream: BinaryIO) -> bytes | None:
    """Reads the next message to a process; None at the end."""
    head = stream.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    length = int.from_bytes(head, "big")
    content = stream.read(length)
    return content if len(content) == length else None


async def send(stream: asyncio.StreamWriter, message: BaseModel) -> None:
    """Sends a message to a process.

    Raises:
        ConnectionError: The process has ended.
    """
    content = message.model_dump_json().encode()
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)
    await stream.drain()


async def receive(stream: asyncio.StreamReader) -> ExaminerReady | Question | ExaminationReply:
    """Reads the next message of a process.

    Raises:
        asyncio.IncompleteReadError: The process has ended.
        ValidationError: The message is malformed.
    """
    length = int.from_bytes(await stream.readexactly(_LENGTH), "big")
    return Reports.model_validate_json(await stream.readexactly(length)).report
