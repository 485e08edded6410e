// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Ownable, Ownable2Step} from "@openzeppelin/contracts/access/Ownable2Step.sol";
import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Burnable} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Burnable.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// @title MUST, the token of stake and rewards
/// @notice An ERC-20 with permit (EIP-2612). Only the governor can mint; holders can burn their own tokens.
contract MusterToken is ERC20Burnable, ERC20Permit, Ownable2Step {
    /// @notice Creates the token with no supply.
    /// @param governor The account that may mint.
    constructor(address governor) ERC20("Muster", "MUST") ERC20Permit("Muster") Ownable(governor) {}

    /// @notice Mints tokens. Only the governor may call this.
    /// @param to The recipient.
    /// @param amount Amount in the smallest unit (18 decimals).
    function mint(address to, uint256 amount) external onlyOwner {
        _mint(to, amount);
    }
}
