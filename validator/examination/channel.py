"""Messages between the service and its examiner processes: JSON after a length prefix of four bytes.

Both ends trust each other: an examiner process decodes untrusted files only in sandboxes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Discriminator

from protocol.identifiers import Digest
from validator.audit.draw import RowDraw
from validator.domain.submissions import WorkFacts
from validator.examination.interface import Conclusion, HashedFile, NotJudged
from validator.examination.settings import ExaminerSettings

_LENGTH = 4


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex")


class StartExaminer(_Message):
    """First message of the service to a process: its settings."""

    settings: ExaminerSettings


class ExaminerReady(_Message):
    """First message of a process to the service: it has started and accepts orders."""

    kind: Literal["ready"] = "ready"


class TryOut(_Message):
    """Request of the service for the process's self-test; the answer is an `ExaminationReply` without a conclusion."""

    kind: Literal["try-out"] = "try-out"


class Order(_Message):
    """Request of the service to examine one file.

    The answers are `Question` and `Progress` messages, then an `ExaminationReply`.
    """

    kind: Literal["order"] = "order"
    facts: WorkFacts
    """Facts of the submission from the ledger."""
    file: Path | HashedFile
    """Path of the file, whose bytes have the submitted SHA-256; or hash and size of a file that was not stored."""
    folder: Path
    """Folder of the policy version."""
    draw: RowDraw
    """Selection of the rows to recompute."""


class Question(_Message):
    """Question of a process to the service during an examination: does another submission have the same outputs?"""

    kind: Literal["question"] = "question"
    fingerprint: Digest
    """Fingerprint of all outputs of the examined file."""


class Progress(_Message):
    """Message of a process during an examination: a stage, or a piece of the recomputation, has ended."""

    kind: Literal["progress"] = "progress"


class Reply(_Message):
    """Answer of the service to a `Question`."""

    copy_found: bool | None
    """True if another submission has the same outputs; None if the service could not look up the fingerprint.

    If the value is None, the process abandons the examination.
    """


class ExaminationReply(_Message):
    """Result of an examination or of a self-test; a passed self-test has neither conclusion nor error."""

    kind: Literal["answer"] = "answer"
    conclusion: Conclusion | None = None
    not_judged: NotJudged | None = None
    ends: bool = False
    """True if the process ends after this message, because its accelerator may be in an unknown state."""


class ExaminerInput(_Message):
    """A message of the service to a process that is ready and runs no examination."""

    order: Annotated[Order | TryOut, Discriminator("kind")]


class ExaminerOutput(_Message):
    """A message of a process to the service."""

    report: ExaminerReady | Question | Progress | ExaminationReply


def write(stream: BinaryIO, message: BaseModel) -> None:
    """Writes a message to a blocking stream; used by the examiner process."""
    content = message.model_dump_json().encode()
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)
    stream.flush()


def read(stream: BinaryIO) -> bytes | None:
    """Reads the next message from a blocking stream; returns None at the end of the stream.

    Used by the examiner process.
    """
    head = stream.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    length = int.from_bytes(head, "big")
    content = stream.read(length)
    return content if len(content) == length else None


async def send(stream: asyncio.StreamWriter, message: BaseModel) -> None:
    """Sends a message to an examiner process; used by the service.

    Raises:
        ConnectionError: The process has ended.
    """
    content = message.model_dump_json().encode()
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)
    await stream.drain()


async def receive(stream: asyncio.StreamReader) -> ExaminerReady | Question | Progress | ExaminationReply:
    """Receives the next message of an examiner process; used by the service.

    Raises:
        asyncio.IncompleteReadError: The process has ended.
        ValidationError: The message does not have the expected format.
    """
    length = int.from_bytes(await stream.readexactly(_LENGTH), "big")
    return ExaminerOutput.model_validate_json(await stream.readexactly(length)).report
