// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title What other contracts ask the registry of nodes
interface IComputeRegistry {
    /// @notice A machine's key, under the provider that answers for it with stake.
    /// @param provider Who owns the node; it never changes once set.
    /// @param capacity What the hardware is worth, in the pool's stake units.
    /// @param registeredAt Unix time in seconds of the latest registration.
    /// @param retired Whether the provider took the node out of service.
    /// @param specsHash Hash of the description of the hardware.
    struct Node {
        address provider;
        uint32 capacity;
        uint40 registeredAt;
        bool retired;
        bytes32 specsHash;
    }

    /// @notice The provider of a node in service; zero if it was never registered or is retired.
    function providerOf(address node) external view returns (address);

    /// @notice The provider that answers for a node's past work, retired or not; zero if never registered.
    function payeeOf(address node) external view returns (address);

    /// @notice Everything that is known of a node; all zero if it was never registered.
    function nodeOf(address node) external view returns (Node memory);
}
