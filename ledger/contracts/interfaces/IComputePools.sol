// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev The most verdict fees that are paid for one work item: to the judge, a confirming validator and one that
/// decides a dispute in their favour; or to a validator that disputes successfully and the two that decide in its
/// favour.
uint256 constant MAX_FEES = 3;

/// @title Terms of work in a pool
/// @param pricePerUnit Reward of one work unit, in the token's smallest unit.
/// @param penaltyPerUnit Stake lost for one forged work unit, in the token's smallest unit.
/// @param stakePerCapacity Stake that a membership locks per unit of the node's capacity.
/// @param auditFloorBps The minimum share of work that is audited, in basis points, 1 to 10000.
/// @param lookBps The share of first verdicts for which a second look is paid, in basis points, 0 to 10000.
/// @param judgePeriod Seconds from the submission in which the first verdict must come.
/// @param challengePeriod Seconds from the first verdict in which it can be disputed.
/// @param disputePeriod Seconds from the dispute in which it must be decided.
/// @param noticePeriod Seconds between the proposal of new terms and their taking effect.
/// @param maxNodes The most members at a time.
/// @param minCapacity The minimum capacity of a member.
/// @param verdictFee Fee of a validator for a verdict, or a paid second look, that agrees with the final outcome.
struct Terms {
    uint128 pricePerUnit;
    uint128 penaltyPerUnit;
    uint128 stakePerCapacity;
    uint16 auditFloorBps;
    uint16 lookBps;
    uint32 judgePeriod;
    uint32 challengePeriod;
    uint32 disputePeriod;
    uint32 noticePeriod;
    uint32 maxNodes;
    uint32 minCapacity;
    uint128 verdictFee;
}

/// @dev Arguments of `openWork`.
/// @param poolId The pool.
/// @param node The node that did the work.
/// @param leaseSigner The signer of the lease.
/// @param units The submitted work units.
/// @param maxUnits The most work units of the lease.
/// @param expiry The end of the lease, Unix time in seconds.
struct Opening {
    uint256 poolId;
    address node;
    address leaseSigner;
    uint64 units;
    uint64 maxUnits;
    uint64 expiry;
}

/// @title Functions of ComputePools that other contracts call
interface IComputePools {
    /// @notice Accepts one submission and reserves its reward and fees. Reverts unless the pool takes work, its
    /// orchestrator signed the lease, and the node is a member or was one when the lease was signed. Only WorkLedger
    /// may call this.
    /// @param opening The submission.
    /// @return provider The node's provider.
    /// @return version The version of the terms that apply to the work.
    /// @return penalty The stake that the work locks.
    function openWork(Opening calldata opening)
        external
        returns (address provider, uint32 version, uint128 penalty);

    /// @notice Ends a reservation: sends `paid` to WorkLedger and frees the rest. Only WorkLedger may call this.
    function settle(uint256 poolId, uint128 reserved, uint128 paid) external;

    /// @notice Evicts a node whose work was forged, and keeps its provider's nodes from joining for a while. Only
    /// WorkLedger may call this.
    function expel(uint256 poolId, address node, address provider) external;

    /// @notice Returns one version of the terms; all zero if there is none.
    function termsAt(uint256 poolId, uint32 version) external view returns (Terms memory);

    /// @notice Returns the domain of a pool; zero if there is no such pool.
    function domainOf(uint256 poolId) external view returns (uint256);

    /// @notice Returns whether `who` may give verdicts in the pool now.
    function isValidator(uint256 poolId, address who) external view returns (bool);

    /// @notice Returns the seat number of a validator that may give verdicts now; zero if `who` may not.
    function seatNumberOf(uint256 poolId, address who) external view returns (uint16);

    /// @notice Returns the address that holds a seat, whether or not it may still give verdicts; zero for seat zero.
    function validatorAt(uint256 poolId, uint16 seat) external view returns (address);

    /// @notice Returns all addresses that may give verdicts in the pool now.
    function validatorsOf(uint256 poolId) external view returns (address[] memory);

    /// @notice Returns whether `who` may announce the pool's checkpoints now.
    function isPublisher(uint256 poolId, address who) external view returns (bool);
}
