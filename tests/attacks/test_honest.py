"""Honest files are accepted in any batch shape and with any other rows in the batch."""

from __future__ import annotations

import itertools

import pytest

from cli.devnet.attacks.attack import Trick
from protocol.verdicts import Outcome, ReasonCode
from tests.attacks.conftest import Judge, Places, handed_in, open_workshop
from validator.examination.interface import Conclusion

pytestmark = pytest.mark.asyncio(loop_scope="session")

_index = itertools.count(1_000)


@pytest.mark.parametrize("max_batch", [1, 7, 64])
async def test_an_honest_file_is_accepted_in_every_batch_shape(max_batch: int, places: Places, judge: Judge) -> None:
    with open_workshop(places, max_batch=max_batch) as node:
        for groups in (1, 4):
            found = await judge(handed_in(node, Trick(), next(_index), groups=groups))
            assert isinstance(found, Conclusion), found
            assert (found.outcome, found.reason) == (Outcome.ACCEPTED, ReasonCode.PASSED), found.words
            assert len(found.audited) == len(found.rows) == groups * 16
            by_name = {check.name: check for check in found.checks}
            assert by_name["sampling"].figures["mismatches"] == 0
