// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev The maximum number of verdict fees that are paid for one work item. Three validators are paid if the first
/// verdict stands after a dispute: the one that gave it, the one that confirmed it, and the one that decided the
/// dispute. Three are also paid if a dispute succeeds: the one that opened it, and the two that decided it.
uint256 constant MAX_FEES = 3;

/// @title Terms of work in a pool
/// @param pricePerUnit Reward of one work unit, in the token's smallest unit.
/// @param penaltyPerUnit Stake that a provider loses for one forged work unit, in the token's smallest unit.
/// @param stakePerCapacity Stake that a membership locks per unit of the node's capacity, in the token's smallest unit.
/// @param auditFloorBps The minimum share of work that is audited, in basis points, 1 to 10000.
/// @param lookBps The share of first verdicts for which a second look is paid, in basis points, 0 to 10000.
/// @param judgePeriod Seconds after the submission within which a validator must give the first verdict.
/// @param challengePeriod Seconds after the first verdict within which the verdict can be disputed.
/// @param disputePeriod Seconds after the dispute within which validators must decide it.
/// @param noticePeriod Seconds between the setting of new terms and their taking effect.
/// @param maxNodes The maximum number of members at a time.
/// @param minCapacity The minimum capacity of a member.
/// @param verdictFee Fee of a validator for a verdict or paid second look that agrees with the final outcome, in the
/// token's smallest unit.
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
/// @param units The number of submitted work units.
/// @param maxUnits The maximum number of work units of the lease.
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
    /// @notice Accepts one submission, and reserves its reward and fees. Reverts unless the pool takes work, the pool's
    /// orchestrator signed the lease, and the node is a member, or was one when the lease was signed. Only WorkLedger
    /// may call this.
    /// @param opening The submission.
    /// @return provider The node's provider.
    /// @return version The version of the terms that apply to the work.
    /// @return penalty The stake that the work locks.
    function openWork(Opening calldata opening)
        external
        returns (address provider, uint32 version, uint128 penalty);

    /// @notice Ends a reservation of escrow: sends `paid` to WorkLedger, and the rest of `reserved` becomes free. Only
    /// WorkLedger may call this.
    function settle(uint256 poolId, uint128 reserved, uint128 paid) external;

    /// @notice Evicts a node whose work was forged. For a period, none of its provider's nodes can join the pool: until
    /// the deadlines of all work that is open now have passed. Only WorkLedger may call this.
    function expel(uint256 poolId, address node, address provider) external;

    /// @notice Returns one version of the terms; all fields are zero if there is none.
    function termsAt(uint256 poolId, uint32 version) external view returns (Terms memory);

    /// @notice Returns the domain of a pool; zero if there is no such pool.
    function domainOf(uint256 poolId) external view returns (uint256);

    /// @notice Returns whether `who` may give verdicts in the pool now.
    function isValidator(uint256 poolId, address who) external view returns (bool);

    /// @notice Returns the seat number of a validator that may give verdicts now; zero if `who` may not.
    function seatNumberOf(uint256 poolId, address who) external view returns (uint16);

    /// @notice Returns the address that has a validator seat, even if it may no longer give verdicts; zero for seat
    /// zero.
    function validatorAt(uint256 poolId, uint16 seat) external view returns (address);

    /// @notice Returns all addresses that may give verdicts in the pool now.
    function validatorsOf(uint256 poolId) external view returns (address[] memory);

    /// @notice Returns whether `who` may announce the pool's checkpoints now.
    function isPublisher(uint256 poolId, address who) external view returns (bool);
}
