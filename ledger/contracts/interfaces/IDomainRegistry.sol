// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Functions of DomainRegistry that other contracts call
interface IDomainRegistry {
    /// @notice A field of work, with its validation rules.
    /// @param reserve The recipient of penalties; zero burns them.
    /// @param active Whether the domain takes new pools and members.
    /// @param validationHash Hash of the validation parameters, which can be read at `uri`.
    /// @param name The name.
    /// @param uri URI of the description.
    struct Domain {
        address reserve;
        bool active;
        bytes32 validationHash;
        string name;
        string uri;
    }

    /// @notice Returns whether the domain exists and is active.
    function isActive(uint256 domainId) external view returns (bool);

    /// @notice Returns the recipient of the domain's penalties; zero means that they are burned.
    function reserveOf(uint256 domainId) external view returns (address);
}
