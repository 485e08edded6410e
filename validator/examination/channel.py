"""Messages between the service and its examiner processes: a length prefix and JSON.

Both ends are trusted: only the child processes of an examiner read the submitted file.
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
    """First message to a process: its settings."""

    settings: ExaminerSettings


class ExaminerReady(_Message):
    """First message of a process: it can take orders."""

    kind: Literal["ready"] = "ready"


class TryOut(_Message):
    """Request to test everything that an examination needs; answered by an `ExaminationReply` without conclusion."""

    kind: Literal["try-out"] = "try-out"


class Order(_Message):
    """Order to examine one file."""

    kind: Literal["order"] = "order"
    facts: WorkFacts
    file: Path | HashedFile
    """Its bytes have the SHA-256 that was submitted."""
    folder: Path
    """Of the policy version."""
    draw: RowDraw
    """Rows to recompute."""


class Question(_Message):
    """Question of a process during an examination: does other work have these outputs?"""

    kind: Literal["question"] = "question"
    fingerprint: Digest


class Reply(_Message):
    """Answer to a `Question`."""

    copy_found: bool | None
    """None if the service can't find out; the examination is then abandoned."""


class ExaminationReply(_Message):
    """Result of an examination or of a test."""

    kind: Literal["answer"] = "answer"
    conclusion: Conclusion | None = None
    not_judged: NotJudged | None = None
    ends: bool = False
    """True if the process ends now, because its accelerator may be in an unknown state after an error."""


class ExaminerInput(_Message):
    """A message to a running process, other than the answer to its question."""

    order: Annotated[Order | TryOut, Discriminator("kind")]


class ExaminerOutput(_Message):
    """A message of a process."""

    report: ExaminerReady | Question | ExaminationReply


def write(stream: BinaryIO, message: BaseModel) -> None:
    """Writes a message; used by the process."""
    content = message.model_dump_json().encode()
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)
    stream.flush()


def read(stream: BinaryIO) -> bytes | None:
    """Reads the next message; None at the end of the input. Used by the process."""
    head = stream.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    length = int.from_bytes(head, "big")
    content = stream.read(length)
    return content if len(content) == length else None


async def send(stream: asyncio.StreamWriter, message: BaseModel) -> None:
    """Sends a message to a process; used by the service.

    Raises:
        ConnectionError: The process has ended.
    """
    content = message.model_dump_json().encode()
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)
    await stream.drain()


async def receive(stream: asyncio.StreamReader) -> ExaminerReady | Question | ExaminationReply:
    """Receives the next message of a process; used by the service.

    Raises:
        asyncio.IncompleteReadError: The process has ended.
        ValidationError: The message has another format.
    """
    length = int.from_bytes(await stream.readexactly(_LENGTH), "big")
    return ExaminerOutput.model_validate_json(await stream.readexactly(length)).report
