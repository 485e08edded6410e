"""What is handed to a process that examines. Apart from the procedure, so that the service imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from validator.audit.draw import RowDraw
from validator.domain.submissions import WorkFacts
from validator.examination.interface import HashedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be examined.

    Args:
        facts: Of the submission.
        file: Its bytes, which are those that were submitted.
        folder: The version's.
        draw: Which rows.
    """

    facts: WorkFacts
    file: Path | HashedFile
    folder: Path
    draw: RowDraw
