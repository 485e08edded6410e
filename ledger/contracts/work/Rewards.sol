// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {MusterToken} from "../MusterToken.sol";

/// @title Rewards of providers and fees of validators
/// @notice Holds the rewards and fees of final work until providers and validators claim them. They don't expire.
/// @dev The token balance of this contract equals all accrued amounts that were not claimed yet, over all pools.
/// Transfers can't reenter this contract, because `MusterToken` makes no callbacks.
abstract contract Rewards {
    /// @notice Totals of a pool, in the token's smallest unit.
    /// @param accrued The sum of all rewards and fees of final work.
    /// @param paid The part of this sum that was claimed.
    struct Totals {
        uint128 accrued;
        uint128 paid;
    }

    /// @notice The token of rewards.
    MusterToken public immutable token;

    /// @notice The amount that a provider or validator has earned in a pool and not claimed, in the token's smallest
    /// unit.
    mapping(uint256 poolId => mapping(address provider => uint256)) public accruedOf;
    mapping(uint256 poolId => Totals) private _totals;

    /// @notice A provider or validator claimed its rewards in a pool.
    event RewardsClaimed(uint256 indexed poolId, address indexed provider, address indexed to, uint256 amount);

    /// @notice The caller has nothing to claim in these pools.
    error NothingToClaim(address provider);
    /// @notice Rewards can't go to the zero address.
    error NoRecipient();

    constructor(MusterToken token_) {
        token = token_;
    }

    /// @notice Sends the caller's unclaimed rewards in these pools to `to`.
    /// @param poolIds The pools; those without unclaimed rewards are skipped.
    /// @param to The recipient.
    /// @return amount The amount sent.
    function claim(uint256[] calldata poolIds, address to) external returns (uint256 amount) {
        if (to == address(0)) revert NoRecipient();
        for (uint256 i; i < poolIds.length; ++i) {
            uint256 part = accruedOf[poolIds[i]][msg.sender];
            if (part == 0) continue;
            accruedOf[poolIds[i]][msg.sender] = 0;
            _totals[poolIds[i]].paid += uint128(part);
            amount += part;
            emit RewardsClaimed(poolIds[i], msg.sender, to, part);
        }
        if (amount == 0) revert NothingToClaim(msg.sender);
        token.transfer(to, amount);
    }

    /// @notice Returns the totals of a pool.
    /// @param poolId The pool.
    function totalsOf(uint256 poolId) external view returns (Totals memory) {
        return _totals[poolId];
    }

    function _accrue(uint256 poolId, address provider, uint128 amount) internal {
        accruedOf[poolId][provider] += amount;
        _totals[poolId].accrued += amount;
    }
}
