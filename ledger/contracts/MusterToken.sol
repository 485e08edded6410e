// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Ownable, Ownable2Step} from "@openzeppelin/contracts/access/Ownable2Step.sol";
import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Burnable} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Burnable.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// @title The token that stake and rewards are in
/// @notice An ERC-20 with permit (EIP-2612) whose supply only the governor can raise and every holder can lower.
contract MusterToken is ERC20Burnable, ERC20Permit, Ownable2Step {
    /// @notice Creates the token with no supply.
    /// @param governor Who may mint.
    constructor(address governor) ERC20("Muster", "MUST") ERC20Permit("Muster") Ownable(governor) {}

    /// @notice Creates `amount` of the smallest unit (18 decimals) for `to`. Only the governor may.
    /// @param to Who receives it.
    /// @param amount How much, in the smallest unit.
    function mint(address to, uint256 amount) external onlyOwner {
        _mint(to, amount);
    }
}
