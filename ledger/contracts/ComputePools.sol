// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {MusterToken} from "./MusterToken.sol";
import {IComputePools, MAX_FEES, Opening, Terms} from "./interfaces/IComputePools.sol";
import {IComputeRegistry} from "./interfaces/IComputeRegistry.sol";
import {IDomainRegistry} from "./interfaces/IDomainRegistry.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {PoolBook} from "./pools/PoolBook.sol";
import {PoolEscrow} from "./pools/PoolEscrow.sol";
import {PoolMembers} from "./pools/PoolMembers.sol";

/// @title Pools of compute nodes
/// @notice A pool has an owner, terms of work, role keys, escrow and member nodes.
contract ComputePools is PoolEscrow, PoolMembers {
    /// @notice Sets the other contracts, which can't be changed later.
    /// @param token_ The token of escrow.
    /// @param registry_ The ComputeRegistry contract.
    /// @param stakeManager_ The StakeManager contract.
    /// @param domains_ The DomainRegistry contract.
    /// @param workLedger_ The WorkLedger contract.
    constructor(
        MusterToken token_,
        IComputeRegistry registry_,
        IStakeManager stakeManager_,
        IDomainRegistry domains_,
        address workLedger_
    ) PoolBook(domains_, stakeManager_, workLedger_) PoolEscrow(token_) PoolMembers(registry_) {}

    /// @notice Creates a pool, which is pending until its owner activates it. The caller becomes the owner, but gets no
    /// other role.
    /// @param domainId An active domain.
    /// @param roles The keys of the pool's roles.
    /// @param terms The terms of work.
    /// @param dataUri URI of the pool's description.
    /// @return poolId The id of the pool; the first pool has id 1.
    function createPool(uint256 domainId, Roles calldata roles, Terms calldata terms, string calldata dataUri)
        external
        returns (uint256 poolId)
    {
        poolId = _create(domainId, terms, dataUri);
        _seat(poolId, roles);
    }

    /// @inheritdoc IComputePools
    function openWork(Opening calldata opening)
        external
        onlyWorkLedger
        returns (address provider, uint32 version, uint128 penalty)
    {
        uint256 poolId = opening.poolId;
        Pool storage pool = _pools[poolId];
        _requireTakesWork(poolId, pool, opening.expiry);
        if (!isOrchestrator(poolId, opening.leaseSigner)) revert NotOrchestrator(poolId, opening.leaseSigner);
        provider = _requireStanding(poolId, opening.node, opening.expiry);
        version = _termsVersion(pool);
        Terms storage terms = _termsInForce(poolId);
        penalty = SafeCast.toUint128(uint256(terms.penaltyPerUnit) * opening.maxUnits);
        uint256 reserved = uint256(terms.pricePerUnit) * opening.units + MAX_FEES * uint256(terms.verdictFee);
        _reserve(poolId, SafeCast.toUint128(reserved));
    }
}
