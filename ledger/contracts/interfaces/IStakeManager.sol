// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title What the pool contracts ask of the stake
/// @dev `active >= membershipLock + workLock` holds at all times, so that open work is always covered.
interface IStakeManager {
    /// @notice How long stake stays slashable after its owner asked for it back, in seconds.
    function unbondingPeriod() external view returns (uint64);

    /// @notice Binds `amount` of the active stake to a membership. Only ComputePools may; reverts if too little is free.
    function lockMembership(address provider, uint128 amount) external;

    /// @notice Frees what `lockMembership` bound. Only ComputePools may.
    function unlockMembership(address provider, uint128 amount) external;

    /// @notice Binds `amount` of the active stake to open work. Only WorkLedger may; reverts if too little is free.
    function lockWork(address provider, uint128 amount) external;

    /// @notice Frees what `lockWork` bound. Only WorkLedger may.
    function unlockWork(address provider, uint128 amount) external;

    /// @notice Takes stake away, active first, then from the unbonding queue. Only WorkLedger may; never reverts for
    /// too little.
    /// @param provider Whose stake.
    /// @param amount How much at most.
    /// @param recipient Who gets it; it is burned if zero.
    /// @return taken How much there was to take.
    function slash(address provider, uint128 amount, address recipient) external returns (uint128 taken);
}
