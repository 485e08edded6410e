"""Self-test of a validator before it takes work: disk, chain, role, orchestrator, examiner and sandbox.

The cheapest test comes first. No test uses a submission, so a submission can't make a test fail.
"""

from __future__ import annotations

from pathlib import Path

from protocol.clients import OrchestratorClient
from protocol.errors import NotFound, RateLimited, Unavailable
from protocol.identifiers import Address
from protocol.runtime.threads import run_in_thread
from validator.chain.connection import NotPoolValidator, PoolChain
from validator.examination.interface import Examiner, NotJudged
from validator.files import WorkFiles, temporary_refusals


class NoPolicies(Unavailable):
    """The folder of versions that the setting `policies` names does not exist."""

    code = "no-policies-folder"
    default_hint = "mount the folder, or remove the setting `policies`: the validator then fetches versions from relays"


class ExaminerBroken(Unavailable):
    """The examiner can't examine a file that is known to be good."""

    code = "examiner-broken"


class SelfTest:
    """The self-test of one validator; calling it runs all tests and raises at the first failure.

    Args:
        me: Address of the validator.
        chain: Chain client of the validator's pool.
        orchestrator: Client of the pool's orchestrator.
        files: File transfers, whose working directory is tested.
        examiner: The examiner.
        policies: Folder of versions from the setting `policies`; None if the setting is not set.
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
            raise NoPolicies(f"the setting policies names {self._policies}, which is not a folder")
        await self._chain.check()
        if not await self._chain.is_pool_validator():
            raise NotPoolValidator(f"{self._me} is not a validator of pool {self._chain.pool_id}")
        await self._ask_orchestrator()
        found = await self._examiner.try_out()
        if found is not None:
            raise _broken(found)

    async def _ask_orchestrator(self) -> None:
        try:
            with temporary_refusals():
                await self._orchestrator.run()
        except (NotFound, RateLimited):
            return  # the orchestrator has no run or limits the rate, but it answers and accepts our key


def _broken(found: NotJudged) -> ExaminerBroken:
    hint = found.hint or ExaminerBroken.default_hint or "the validator's log has the examiner's output"
    return ExaminerBroken(found.why, hint=hint, code=found.code)
