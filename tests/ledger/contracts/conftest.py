"""Fixtures for the contract tests."""

from tests.kit.contract_chain import ledger_process, shared_world, world

__all__ = ["ledger_process", "shared_world", "world"]
