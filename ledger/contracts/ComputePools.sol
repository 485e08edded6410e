// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {MusterToken} from "./MusterToken.sol";
import {IComputePools, Terms} from "./interfaces/IComputePools.sol";
import {IComputeRegistry} from "./interfaces/IComputeRegistry.sol";
import {IDomainRegistry} from "./interfaces/IDomainRegistry.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {PoolBook} from "./pools/PoolBook.sol";
import {PoolEscrow} from "./pools/PoolEscrow.sol";
import {PoolMembers} from "./pools/PoolMembers.sol";

/// @title Pools of compute
/// @notice A pool is one owner's task: its terms, the keys that speak for it, its money and its members.
contract ComputePools is PoolEscrow, PoolMembers {
    /// @notice Fixes the other contracts for ever.
    /// @param token_ The token that escrow is in.
    /// @param registry_ Where nodes are registered.
    /// @param stakeManager_ Where stake is.
    /// @param domains_ Where domains are.
    /// @param workLedger_ Where work is.
    constructor(
        MusterToken token_,
        IComputeRegistry registry_,
        IStakeManager stakeManager_,
        IDomainRegistry domains_,
        address workLedger_
    ) PoolBook(domains_, stakeManager_, workLedger_) PoolEscrow(token_) PoolMembers(registry_) {}

    /// @notice Creates a pool, pending until its owner activates it. The caller becomes its owner, and nothing else.
    /// @param domainId An active domain.
    /// @param roles The keys that speak for the pool.
    /// @param terms What its members work under.
    /// @param dataUri Where it describes itself.
    /// @return poolId Its number, from 1.
    function createPool(uint256 domainId, Roles calldata roles, Terms calldata terms, string calldata dataUri)
        external
        returns (uint256 poolId)
    {
        poolId = _create(domainId, terms, dataUri);
        _seat(poolId, roles);
    }

    /// @inheritdoc IComputePools
    function openWork(uint256 poolId, address node, address leaseSigner, uint256 units)
        external
        onlyWorkLedger
        returns (address provider, uint32 version, uint128 penalty)
    {
        Pool storage pool = _pools[poolId];
        _requireActive(poolId, pool);
        if (!isOrchestrator(poolId, leaseSigner)) revert NotOrchestrator(poolId, leaseSigner);
        provider = _requireStanding(poolId, node);
        version = _termsVersion(pool);
        Terms storage terms = _termsInForce(poolId);
        penalty = SafeCast.toUint128(uint256(terms.penaltyPerUnit) * units);
        _reserve(poolId, SafeCast.toUint128(uint256(terms.pricePerUnit) * units));
    }
}
