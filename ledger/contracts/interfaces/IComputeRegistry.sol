// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Functions of ComputeRegistry that other contracts call
interface IComputeRegistry {
    /// @notice A registered node.
    /// @param provider The owner of the node, which never changes.
    /// @param capacity Size of the hardware; a pool's stake requirement is per unit of capacity.
    /// @param registeredAt Unix time in seconds of the latest registration.
    /// @param retired Whether the provider took the node out of service.
    /// @param specsHash Hash of the hardware description.
    struct Node {
        address provider;
        uint32 capacity;
        uint40 registeredAt;
        bool retired;
        bytes32 specsHash;
    }

    /// @notice Returns the provider of a node; zero if the node was never registered, or is retired.
    function providerOf(address node) external view returns (address);

    /// @notice Returns the provider that is paid or slashed for a node's work, even if the node is retired; zero if the
    /// node was never registered.
    function payeeOf(address node) external view returns (address);

    /// @notice Returns a node's registration; all fields are zero if the node was never registered.
    function nodeOf(address node) external view returns (Node memory);
}
