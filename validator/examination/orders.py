"""Order to an examiner process, in a separate module so that the service does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from validator.audit.draw import RowDraw
from validator.domain.submissions import WorkFacts
from validator.examination.interface import HashedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Order to examine one file.

    Args:
        facts: Facts of the submission.
        file: Path of the verified file.
        folder: Folder of the version.
        draw: Rows to recompute.
    """

    facts: WorkFacts
    file: Path | HashedFile
    folder: Path
    draw: RowDraw
