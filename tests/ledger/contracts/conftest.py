"""Fixtures for the contract tests."""

from tests.kit.contract_chain import contracts_process, shared_world, world

__all__ = ["contracts_process", "shared_world", "world"]
