// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SignatureChecker} from "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";
import {IComputeRegistry} from "./interfaces/IComputeRegistry.sol";

/// @title Registry of nodes
/// @notice A node is identified by a key on a machine. It belongs to a provider, which loses stake if the node submits
/// forged work. A registration needs the consent of both keys.
/// @dev A node never changes its provider, because other contracts look up the owner of stake locks and rewards by the
/// node, even after the node is retired.
contract ComputeRegistry is IComputeRegistry, EIP712 {
    bytes32 private constant _NODE_CONSENT =
        keccak256("NodeConsent(address provider,address node,uint256 nonce,uint256 deadline)");
    bytes32 private constant _PROVIDER_CONSENT = keccak256(
        "ProviderConsent(address provider,address node,bytes32 specsHash,uint32 capacity,uint256 nonce,uint256 deadline)"
    );

    /// @notice A node was registered under a provider.
    event NodeRegistered(address indexed provider, address indexed node, bytes32 specsHash, uint32 capacity);
    /// @notice A provider updated a node's capacity and hardware description.
    event NodeUpdated(address indexed provider, address indexed node, bytes32 specsHash, uint32 capacity);
    /// @notice A provider took a node out of service.
    event NodeRetired(address indexed provider, address indexed node);
    /// @notice A node invalidated every consent that it had signed.
    event ConsentRevoked(address indexed node, uint256 nextNonce);

    /// @notice A node and its provider must have different keys, and the provider must not be the zero address.
    error KeysNotApart(address provider, address node);
    /// @notice The node is already in service, or is registered by another provider.
    error NodeTaken(address node, address provider);
    /// @notice The caller is not the provider of the node, or the node is not in service.
    error NotProvider(address node, address caller);
    /// @notice Capacity must be at least 1.
    error NoCapacity();
    /// @notice The consent expired at `deadline`.
    error ConsentExpired(uint256 deadline);
    /// @notice The consent is not signed by `signer`.
    error BadConsent(address signer);

    mapping(address node => Node) private _nodes;

    /// @notice The nonce that a node's next consent, and a provider's consent for this node, must contain.
    mapping(address node => uint256) public consentNonce;

    /// @notice The number of nodes that a provider has in service.
    mapping(address provider => uint256) public nodeCountOf;

    /// @notice Creates an empty registry.
    constructor() EIP712("Muster", "2") {}

    /// @notice Registers a node under the caller, with the node's consent.
    /// @param node The node's address.
    /// @param specsHash Hash of the hardware description.
    /// @param capacity Size of the hardware, at least 1; stake requirements are per unit of capacity.
    /// @param deadline Unix time in seconds until which the consent may be used.
    /// @param nodeSignature The node's EIP-712 signature of the `NodeConsent`.
    function registerNode(
        address node,
        bytes32 specsHash,
        uint32 capacity,
        uint256 deadline,
        bytes calldata nodeSignature
    ) external {
        uint256 nonce = _useConsent(msg.sender, node, deadline, nodeSignature);
        _register(msg.sender, node, specsHash, capacity, nonce);
    }

    /// @notice Registers a node with the signed consents of both keys. Any account may call this.
    /// @param provider The provider: an ordinary account, or a contract wallet (ERC-1271).
    /// @param node The node's address.
    /// @param specsHash Hash of the hardware description.
    /// @param capacity Size of the hardware, at least 1; stake requirements are per unit of capacity.
    /// @param deadline Unix time in seconds until which both consents may be used.
    /// @param providerSignature The provider's EIP-712 signature of the `ProviderConsent`.
    /// @param nodeSignature The node's EIP-712 signature of the `NodeConsent`.
    function registerNodeFor(
        address provider,
        address node,
        bytes32 specsHash,
        uint32 capacity,
        uint256 deadline,
        bytes calldata providerSignature,
        bytes calldata nodeSignature
    ) external {
        uint256 nonce = _useConsent(provider, node, deadline, nodeSignature);
        bytes32 digest = _hashTypedDataV4(
            keccak256(abi.encode(_PROVIDER_CONSENT, provider, node, specsHash, capacity, nonce, deadline))
        );
        // The ECDSA signature is tried first, because an account with delegated code (EIP-7702) still signs with its
        // key.
        if (
            !_signed(provider, digest, providerSignature)
                && !SignatureChecker.isValidERC1271SignatureNowCalldata(provider, digest, providerSignature)
        ) revert BadConsent(provider);
        _register(provider, node, specsHash, capacity, nonce);
    }

    /// @notice Updates a node. The stake that an existing membership locks does not change.
    /// @param node A node of the caller that is in service.
    /// @param specsHash Hash of the new hardware description.
    /// @param capacity The new capacity, at least 1.
    function updateNode(address node, bytes32 specsHash, uint32 capacity) external {
        _requireProvider(node);
        if (capacity == 0) revert NoCapacity();
        _nodes[node].specsHash = specsHash;
        _nodes[node].capacity = capacity;
        emit NodeUpdated(msg.sender, node, specsHash, capacity);
    }

    /// @notice Takes a node out of service: it can't join pools or submit work until its provider registers it again.
    /// @param node A node of the caller that is in service.
    function retireNode(address node) external {
        _requireProvider(node);
        _nodes[node].retired = true;
        --nodeCountOf[msg.sender];
        emit NodeRetired(msg.sender, node);
    }

    /// @notice Invalidates every unused consent that the calling node has signed, and all of providers for this node.
    function revokeConsent() external {
        emit ConsentRevoked(msg.sender, ++consentNonce[msg.sender]);
    }

    /// @inheritdoc IComputeRegistry
    function providerOf(address node) external view returns (address) {
        Node storage entry = _nodes[node];
        return entry.retired ? address(0) : entry.provider;
    }

    /// @inheritdoc IComputeRegistry
    function payeeOf(address node) external view returns (address) {
        return _nodes[node].provider;
    }

    /// @inheritdoc IComputeRegistry
    function nodeOf(address node) external view returns (Node memory) {
        return _nodes[node];
    }

    function _useConsent(address provider, address node, uint256 deadline, bytes calldata signature)
        private
        view
        returns (uint256 nonce)
    {
        if (block.timestamp > deadline) revert ConsentExpired(deadline);
        nonce = consentNonce[node];
        bytes32 digest =
            _hashTypedDataV4(keccak256(abi.encode(_NODE_CONSENT, provider, node, nonce, deadline)));
        if (!_signed(node, digest, signature)) revert BadConsent(node);
    }

    function _register(address provider, address node, bytes32 specsHash, uint32 capacity, uint256 nonce) private {
        if (provider == node || provider == address(0)) revert KeysNotApart(provider, node);
        if (capacity == 0) revert NoCapacity();
        Node storage entry = _nodes[node];
        if (entry.provider != address(0) && (!entry.retired || entry.provider != provider)) {
            revert NodeTaken(node, entry.provider);
        }
        consentNonce[node] = nonce + 1;
        ++nodeCountOf[provider];
        _nodes[node] = Node({
            provider: provider,
            capacity: capacity,
            registeredAt: uint40(block.timestamp),
            retired: false,
            specsHash: specsHash
        });
        emit NodeRegistered(provider, node, specsHash, capacity);
    }

    function _requireProvider(address node) private view {
        Node storage entry = _nodes[node];
        if (entry.provider != msg.sender || entry.retired) revert NotProvider(node, msg.sender);
    }

    function _signed(address signer, bytes32 digest, bytes calldata signature) private pure returns (bool) {
        (address recovered, ECDSA.RecoverError failure,) = ECDSA.tryRecoverCalldata(digest, signature);
        return failure == ECDSA.RecoverError.NoError && recovered == signer;
    }
}
