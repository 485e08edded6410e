"""Fixtures for the ledger tests."""

from tests.kit.chain import (
    anvil_process,
    anvil_url,
    chain,
    chain_process,
    development_chain,
    development_process,
    embedded,
    embedded_process,
    pytest_collection_finish,
    pytest_unconfigure,
)

__all__ = [
    "anvil_process",
    "anvil_url",
    "chain",
    "chain_process",
    "development_chain",
    "development_process",
    "embedded",
    "embedded_process",
    "pytest_collection_finish",
    "pytest_unconfigure",
]
