// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title What other contracts ask the registry of domains
interface IDomainRegistry {
    /// @notice A field of work with its rules of validation.
    /// @param reserve Where penalties go; zero burns them.
    /// @param active Whether new pools and members are welcome.
    /// @param validationHash Hash of the validation parameters behind `uri`.
    /// @param name What people call it.
    /// @param uri Where it is described.
    struct Domain {
        address reserve;
        bool active;
        bytes32 validationHash;
        string name;
        string uri;
    }

    /// @notice Whether the domain exists and is active.
    function isActive(uint256 domainId) external view returns (bool);

    /// @notice Where the domain's penalties go; zero means that they are burned.
    function reserveOf(uint256 domainId) external view returns (address);
}
