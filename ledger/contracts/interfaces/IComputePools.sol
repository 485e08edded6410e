// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev The most verdicts and second looks that are paid for one piece of work: those of the judge, of a confirming
/// validator and of one that decides a dispute for them; or those of a validator that disputes with success and of the
/// two that decide it so.
uint256 constant MAX_FEES = 3;

/// @title The terms that a pool's members work under
/// @param pricePerUnit Reward of one work unit, in the token's smallest unit.
/// @param penaltyPerUnit Stake lost for one forged work unit, in the token's smallest unit.
/// @param stakePerCapacity Stake that one unit of capacity binds while its node is a member.
/// @param auditFloorBps The share of work that is audited at the least, in basis points, 1 to 10000.
/// @param lookBps The share of first verdicts for which a second look is paid, in basis points, 0 to 10000.
/// @param judgePeriod Seconds in which the first verdict must come.
/// @param challengePeriod Seconds in which a verdict can be disputed.
/// @param disputePeriod Seconds in which the second verdict must come.
/// @param noticePeriod Seconds before new terms bind anybody.
/// @param maxNodes The most members at a time.
/// @param minCapacity The least capacity of a member.
/// @param verdictFee What a validator earns for a verdict or a paid second look that the final outcome bears out.
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

/// @dev A submission as `openWork` is asked to admit it.
/// @param poolId The pool.
/// @param node The node that did the work.
/// @param leaseSigner Who signed the lease.
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

/// @title What other contracts ask of the pools
interface IComputePools {
    /// @notice Admits one submission of work: the pool takes work, the lease's signer is its orchestrator, the node is a
    /// member or was one when the lease was signed, and reward and fees are reserved. Only WorkLedger may call it;
    /// reverts if any of it does not hold.
    /// @param opening The submission.
    /// @return provider The provider that answers for the node.
    /// @return version The version of the terms that the work is under.
    /// @return penalty The stake that the work binds.
    function openWork(Opening calldata opening)
        external
        returns (address provider, uint32 version, uint128 penalty);

    /// @notice Ends a reservation: `paid` goes to WorkLedger, the rest is free again. Only WorkLedger may call it.
    function settle(uint256 poolId, uint128 reserved, uint128 paid) external;

    /// @notice Evicts a node whose work was forged and delays every joining of its provider. Only WorkLedger may call it.
    function expel(uint256 poolId, address node, address provider) external;

    /// @notice The terms of one version; all zero if there is none.
    function termsAt(uint256 poolId, uint32 version) external view returns (Terms memory);

    /// @notice The domain of a pool; zero if there is no such pool.
    function domainOf(uint256 poolId) external view returns (uint256);

    /// @notice Whether `who` may give verdicts in the pool now.
    function isValidator(uint256 poolId, address who) external view returns (bool);

    /// @notice The seat number of a validator that may give verdicts now; zero if `who` may not.
    function seatNumberOf(uint256 poolId, address who) external view returns (uint16);

    /// @notice The address that holds a seat, whether or not it may still give verdicts; zero for seat zero.
    function validatorAt(uint256 poolId, uint16 seat) external view returns (address);

    /// @notice All addresses that may give verdicts in the pool now.
    function validatorsOf(uint256 poolId) external view returns (address[] memory);

    /// @notice Whether `who` may announce the pool's checkpoints now.
    function isPublisher(uint256 poolId, address who) external view returns (bool);
}
