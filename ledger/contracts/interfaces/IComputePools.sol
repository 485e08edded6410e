// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title The terms that a pool's members work under
/// @param pricePerUnit Reward of one work unit, in the token's smallest unit.
/// @param penaltyPerUnit Stake lost for one forged work unit, in the token's smallest unit.
/// @param stakePerCapacity Stake that one unit of capacity binds while its node is a member.
/// @param auditFloorBps The share of work that is audited at the least, in basis points, 1 to 10000.
/// @param judgePeriod Seconds in which the first verdict must come.
/// @param challengePeriod Seconds in which a verdict can be disputed.
/// @param disputePeriod Seconds in which the second verdict must come.
/// @param noticePeriod Seconds before new terms bind anybody.
/// @param maxNodes The most members at a time.
/// @param minCapacity The least capacity of a member.
struct Terms {
    uint128 pricePerUnit;
    uint128 penaltyPerUnit;
    uint128 stakePerCapacity;
    uint16 auditFloorBps;
    uint32 judgePeriod;
    uint32 challengePeriod;
    uint32 disputePeriod;
    uint32 noticePeriod;
    uint32 maxNodes;
    uint32 minCapacity;
}

/// @title What other contracts ask of the pools
interface IComputePools {
    /// @notice Admits one submission of work: the pool is active, the lease's signer is its orchestrator, the node is a
    /// member in good standing, and the reward is set aside. Only WorkLedger may; reverts if any of it does not hold.
    /// @param poolId The pool.
    /// @param node Who did the work.
    /// @param leaseSigner Who signed the lease.
    /// @param units How much work.
    /// @return provider Who answers for the node.
    /// @return version Which version of the terms the work is under.
    /// @return penalty The stake that stands for the work.
    function openWork(uint256 poolId, address node, address leaseSigner, uint256 units)
        external
        returns (address provider, uint32 version, uint128 penalty);

    /// @notice Gives a reserved reward back to the free escrow. Only WorkLedger may.
    function release(uint256 poolId, uint128 amount) external;

    /// @notice Sends a reserved reward to WorkLedger. Only WorkLedger may.
    function settle(uint256 poolId, uint128 amount) external;

    /// @notice Evicts a node whose work was forged; does nothing if it is no member. Only WorkLedger may.
    function expel(uint256 poolId, address node) external;

    /// @notice The terms of one version; all zero if there is none.
    function termsAt(uint256 poolId, uint32 version) external view returns (Terms memory);

    /// @notice The domain of a pool; zero if there is no such pool.
    function domainOf(uint256 poolId) external view returns (uint256);

    /// @notice Whether `who` may give verdicts in the pool now.
    function isValidator(uint256 poolId, address who) external view returns (bool);

    /// @notice Whether `who` may announce the pool's checkpoints now.
    function isPublisher(uint256 poolId, address who) external view returns (bool);
}
