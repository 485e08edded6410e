"""Self-test before taking work: disk, chain, role, orchestrator, examiner and sandbox.

The cheapest test comes first. None depends on a submission, so a failure is never a submission's fault.
"""

from __future__ import annotations

from pathlib import Path

from protocol.clients import OrchestratorClient
from protocol.errors import NotFound, RateLimited, Unavailable
from protocol.identifiers import Address
from protocol.runtime.threads import run_in_thread
from validator.chain.connection import NotSeated, PoolChain
from validator.examination.interface import Examiner, NotJudged
from validator.files import WorkFiles, served


class NoPolicies(Unavailable):
    """The folder of versions in the settings does not exist."""

    code = "no-policies-folder"
    default_hint = "mount it, or take `policies` out of the validator's settings: versions are fetched from relays then"


class ExaminerBroken(Unavailable):
    """The examiner fails on a file that is known to be good."""

    code = "examiner-broken"


class SelfTest:
    """The self-test of one validator; calling it returns if every test passes.

    Args:
        me: Address of the validator.
        chain: The ledger.
        orchestrator: Client of the pool's orchestrator.
        files: Transfers of files.
        examiner: The examiner.
        policies: Folder of versions, if the settings name one.
    """

    def __init__(
        self,
        me: Address,
        *,
        chain: PoolChain,
        orchestrator: OrchestratorClient,
        files: WorkFiles,
        examiner: Examiner,
        policies: Path | None,
    ) -> None:
        self._me = me
        self._chain = chain
        self._orchestrator = orchestrator
        self._files = files
        self._examiner = examiner
        self._policies = policies

    async def __call__(self) -> None:
        """Runs all tests and stops at the first failure.

        Raises:
            MusterError: A test failed.
        """
        await run_in_thread(self._files.try_disk)
        if self._policies is not None and not await run_in_thread(self._policies.is_dir):
            raise NoPolicies(f"there is no folder {self._policies}")
        await self._chain.check()
        if not await self._chain.is_seated():
            raise NotSeated(f"{self._me} is no validator of pool {self._chain.pool_id}")
        await self._ask_orchestrator()
        found = await self._examiner.try_out()
        if found is not None:
            raise _broken(found)

    async def _ask_orchestrator(self) -> None:
        try:
            with served():
                await self._orchestrator.run()
        except (NotFound, RateLimited):
            return  # it answers and accepts our key


def _broken(found: NotJudged) -> ExaminerBroken:
    hint = found.hint or ExaminerBroken.default_hint or "the validator's log has the examiner's own words"
    return ExaminerBroken(found.why, hint=hint, code=found.code)
