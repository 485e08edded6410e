// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Functions of StakeManager that other contracts call
/// @dev `active >= membershipLock + workLock` holds at all times, so that open work is always covered.
interface IStakeManager {
    /// @notice Returns the number of seconds that stake stays slashable after its owner began to unbond it.
    function unbondingPeriod() external view returns (uint64);

    /// @notice Locks active stake for a membership; reverts if too little is free. Only ComputePools may call this.
    function lockMembership(address provider, uint128 amount) external;

    /// @notice Unlocks stake that `lockMembership` locked. Only ComputePools may call this.
    function unlockMembership(address provider, uint128 amount) external;

    /// @notice Locks active stake for open work; reverts if too little is free. Only WorkLedger may call this.
    function lockWork(address provider, uint128 amount) external;

    /// @notice Unlocks stake that `lockWork` locked. Only WorkLedger may call this.
    function unlockWork(address provider, uint128 amount) external;

    /// @notice Slashes a provider's stake: first active stake, then stake in the unbonding queue. If the provider has
    /// less than `amount`, all of it is taken, and the call does not revert. Only WorkLedger may call this.
    /// @param provider The provider.
    /// @param amount The maximum amount to take.
    /// @param recipient The recipient; the stake is burned if zero.
    /// @return taken The amount taken.
    function slash(address provider, uint128 amount, address recipient) external returns (uint128 taken);
}
