// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {IComputeRegistry} from "../interfaces/IComputeRegistry.sol";
import {IComputePools, Terms} from "../interfaces/IComputePools.sol";
import {PoolRoles} from "./PoolRoles.sol";

/// @title Members of a pool
/// @notice A node joins with an invite, which the orchestrator signs and which can be used once. A removed or evicted
/// node can join again with another invite. A banned node can do so only after its ban is lifted.
abstract contract PoolMembers is PoolRoles, EIP712 {
    /// @notice The reason why a node's membership ended.
    enum Departure {
        Left,
        Removed,
        Evicted,
        Banned
    }

    /// @notice Permission to join a pool, signed by the pool's orchestrator.
    /// @param poolId The pool.
    /// @param node The node that may join.
    /// @param nonce A number that no other invite of this pool has.
    /// @param expiry Unix time in seconds until which the invite is valid.
    /// @param url The orchestrator's URL.
    struct Invite {
        uint256 poolId;
        address node;
        uint256 nonce;
        uint256 expiry;
        string url;
    }

    /// @notice One item of `joinBatch`.
    /// @param invite The invite.
    /// @param orchestratorSignature The orchestrator's EIP-712 signature of the `Invite`.
    /// @param nodeSignature The node's EIP-712 signature of the `Join`.
    struct Joining {
        Invite invite;
        bytes orchestratorSignature;
        bytes nodeSignature;
    }

    /// @notice A node's membership in a pool.
    /// @param provider The node's provider; zero if the node is not a member now.
    /// @param joinedAt Unix time in seconds of the latest join.
    /// @param joinedBlock The block of the latest join.
    /// @param stakeLock The stake that the membership locks.
    /// @param joins The number of times that the node has joined. It is the nonce of a signed `Leave`.
    /// @param heldUntil For a former member: Unix time in seconds. The node can still submit work under leases that
    /// expire until then, because these may have been signed before it left. Zero after an eviction for forged work.
    struct Membership {
        address provider;
        uint48 joinedAt;
        uint48 joinedBlock;
        uint128 stakeLock;
        uint64 joins;
        uint64 heldUntil;
    }

    bytes32 private constant _INVITE = keccak256(
        "Invite(uint256 poolId,uint256 domainId,address node,uint256 nonce,uint256 expiry,string url)"
    );
    bytes32 private constant _JOIN = keccak256("Join(bytes32 inviteHash)");
    bytes32 private constant _LEAVE = keccak256("Leave(uint256 poolId,address node,uint256 nonce,uint256 deadline)");

    /// @notice The ComputeRegistry contract.
    IComputeRegistry public immutable registry;

    /// @notice Whether an invite's nonce was used or cancelled.
    mapping(uint256 poolId => mapping(uint256 nonce => bool)) public inviteUsed;
    /// @notice Whether a node is banned from a pool.
    mapping(uint256 poolId => mapping(address node => bool)) public nodeBanned;
    /// @notice Unix time in seconds before which a provider's nodes may not join, because one of them submitted forged
    /// work.
    mapping(uint256 poolId => mapping(address provider => uint64)) public mayJoinAt;

    /// @dev The latest expiry, Unix time in seconds, of leases that nodes of a banned provider can still use; zero if
    /// the provider is not banned.
    mapping(uint256 poolId => mapping(address provider => uint64)) private _bannedHeldUntil;

    mapping(uint256 poolId => mapping(address node => Membership)) private _members;

    /// @notice A node joined.
    event MemberJoined(
        uint256 indexed poolId, address indexed node, address indexed provider, uint256 nonce, uint256 stakeLock
    );
    /// @notice A node's membership ended.
    event MemberLeft(
        uint256 indexed poolId, address indexed node, address indexed provider, Departure cause, string reason
    );
    /// @notice An item of `joinBatch` was refused; `reason` is the revert data.
    event JoinRefused(uint256 indexed poolId, address indexed node, bytes reason);
    /// @notice An invite was cancelled.
    event InviteCancelled(uint256 indexed poolId, uint256 nonce);
    /// @notice A node was banned; it may not join until the ban is lifted.
    event NodeBanned(uint256 indexed poolId, address indexed node, string reason);
    /// @notice A node's ban was lifted.
    event NodeUnbanned(uint256 indexed poolId, address indexed node);
    /// @notice A provider was banned; its nodes may neither join nor submit until the ban is lifted.
    event ProviderBanned(uint256 indexed poolId, address indexed provider, string reason);
    /// @notice A provider's ban was lifted.
    event ProviderUnbanned(uint256 indexed poolId, address indexed provider);

    /// @notice The signature expired at `deadline`.
    error SignatureExpired(uint256 deadline);
    /// @notice The invite was already used or cancelled.
    error InviteUsed(uint256 poolId, uint256 nonce);
    /// @notice The invite is not signed by the pool's orchestrator.
    error BadInvite(uint256 poolId, address signer);
    /// @notice The caller is not the node, and the node did not sign.
    error NodeNotWilling(address node);
    /// @notice The node is not registered, or is retired.
    error NotRegistered(address node);
    /// @notice The node or its provider is banned from the pool.
    error Banned(uint256 poolId, address who);
    /// @notice One of the provider's nodes submitted forged work, so none of them may join before `until`.
    error TooSoon(uint256 poolId, address provider, uint256 until);
    /// @notice The node is already a member.
    error MemberAlready(uint256 poolId, address node);
    /// @notice The node is not a member.
    error NotMember(uint256 poolId, address node);
    /// @notice The node's capacity is below the pool's minimum.
    error CapacityTooLow(address node, uint256 capacity, uint256 least);
    /// @notice The pool has its maximum number of members.
    error PoolFull(uint256 poolId, uint256 maxNodes);
    /// @notice The caller is neither the node nor its provider, and the node did not sign.
    error NotNodeNorProvider(address node, address caller);
    /// @notice The node or provider is already banned; or, for the lifting of a ban, it is not banned.
    error BanUnchanged(uint256 poolId, address who);

    constructor(IComputeRegistry registry_) EIP712("Muster", "2") {
        registry = registry_;
    }

    /// @notice Makes a node a member by an invite. Any account may call this with the node's signature.
    /// @param invite The invite.
    /// @param orchestratorSignature The orchestrator's EIP-712 signature of the `Invite`.
    /// @param nodeSignature The node's EIP-712 signature of the `Join`; may be empty if the node is the caller.
    function join(Invite calldata invite, bytes calldata orchestratorSignature, bytes calldata nodeSignature)
        external
    {
        (uint256 poolId, address node) = (invite.poolId, invite.node);
        Pool storage pool = _pools[poolId];
        _requireActive(poolId, pool);
        _requireDomain(pool.domainId);
        _useInvite(pool.domainId, invite, orchestratorSignature, nodeSignature);
        IComputeRegistry.Node memory entry = registry.nodeOf(node);
        if (entry.provider == address(0) || entry.retired) revert NotRegistered(node);
        if (nodeBanned[poolId][node]) revert Banned(poolId, node);
        if (providerBanned(poolId, entry.provider)) revert Banned(poolId, entry.provider);
        uint256 mayJoin = mayJoinAt[poolId][entry.provider];
        if (block.timestamp < mayJoin) revert TooSoon(poolId, entry.provider, mayJoin);
        Membership storage member = _members[poolId][node];
        if (member.provider != address(0)) revert MemberAlready(poolId, node);
        Terms storage terms = _termsInForce(poolId);
        if (entry.capacity < terms.minCapacity) revert CapacityTooLow(node, entry.capacity, terms.minCapacity);
        if (pool.memberCount >= terms.maxNodes) revert PoolFull(poolId, terms.maxNodes);
        ++pool.memberCount;
        uint128 stakeLock = SafeCast.toUint128(uint256(terms.stakePerCapacity) * entry.capacity);
        _members[poolId][node] = Membership({
            provider: entry.provider,
            joinedAt: uint48(block.timestamp),
            joinedBlock: uint48(block.number),
            stakeLock: stakeLock,
            joins: member.joins + 1,
            heldUntil: 0
        });
        emit MemberJoined(poolId, node, entry.provider, invite.nonce, stakeLock);
        stakeManager.lockMembership(entry.provider, stakeLock);
    }

    /// @notice Makes several nodes members by their invites; a refused item does not affect the others.
    /// @param items At most `MAX_BATCH`; each needs its node's signature.
    function joinBatch(Joining[] calldata items) external {
        _requireBatch(items.length);
        for (uint256 i; i < items.length; ++i) {
            Joining calldata item = items[i];
            try this.join(item.invite, item.orchestratorSignature, item.nodeSignature) {}
            catch (bytes memory reason) {
                emit JoinRefused(item.invite.poolId, item.invite.node, reason);
            }
        }
    }

    /// @notice Cancels an invite. Only the owner, the manager or the orchestrator may call this.
    /// @param poolId The pool.
    /// @param nonce The invite's nonce.
    function cancelInvite(uint256 poolId, uint256 nonce) external {
        if (msg.sender != _pools[poolId].owner) _requireOperator(poolId);
        if (inviteUsed[poolId][nonce]) revert InviteUsed(poolId, nonce);
        inviteUsed[poolId][nonce] = true;
        emit InviteCancelled(poolId, nonce);
    }

    /// @notice Ends a membership at the request of the node or its provider, in any status of the pool. Any account may
    /// call this with the node's signature.
    /// @param poolId The pool.
    /// @param node The member.
    /// @param deadline Unix time in seconds until which the signature is valid; ignored without a signature.
    /// @param nodeSignature The node's EIP-712 signature of the `Leave`, with its `joins` as nonce; empty if the node
    /// or its provider is the caller.
    function leavePool(uint256 poolId, address node, uint256 deadline, bytes calldata nodeSignature) external {
        Membership storage member = _members[poolId][node];
        if (member.provider == address(0)) revert NotMember(poolId, node);
        if (msg.sender != node && msg.sender != member.provider) {
            if (block.timestamp > deadline) revert SignatureExpired(deadline);
            bytes32 structHash = keccak256(abi.encode(_LEAVE, poolId, node, uint256(member.joins), deadline));
            if (_signer(structHash, nodeSignature) != node) revert NotNodeNorProvider(node, msg.sender);
        }
        _depart(poolId, node, Departure.Left, "");
    }

    /// @notice Ends memberships for reasons other than misconduct, such as a node that stopped responding. Skips nodes
    /// that are not members. Only the orchestrator or the manager may call this.
    /// @param poolId The pool.
    /// @param nodes At most `MAX_BATCH`.
    /// @param reason The reason, as text.
    function remove(uint256 poolId, address[] calldata nodes, string calldata reason) external {
        _requireOperator(poolId);
        _requireBatch(nodes.length);
        _requireShort(reason);
        for (uint256 i; i < nodes.length; ++i) {
            if (_members[poolId][nodes[i]].provider != address(0)) {
                _depart(poolId, nodes[i], Departure.Removed, reason);
            }
        }
    }

    /// @notice Ends a membership for misconduct; the node may be invited again. Only the manager may call this.
    /// @param poolId The pool.
    /// @param node The member.
    /// @param reason The reason, as text.
    function evict(uint256 poolId, address node, string calldata reason) external onlyManager(poolId) {
        _requireShort(reason);
        if (_members[poolId][node].provider == address(0)) revert NotMember(poolId, node);
        _depart(poolId, node, Departure.Evicted, reason);
    }

    /// @inheritdoc IComputePools
    function expel(uint256 poolId, address node, address provider) external onlyWorkLedger {
        Terms storage terms = _termsInForce(poolId);
        // After this period the deadlines of all work that is open now have passed.
        uint256 period = uint256(terms.judgePeriod) + terms.challengePeriod + terms.disputePeriod;
        mayJoinAt[poolId][provider] = SafeCast.toUint64(block.timestamp + period);
        Membership storage member = _members[poolId][node];
        if (member.provider != address(0)) _depart(poolId, node, Departure.Evicted, "forged work");
        member.heldUntil = 0;
    }

    /// @notice Bans a node until `unban`, and ends its membership if it has one. Only the manager may call this.
    /// @param poolId The pool.
    /// @param node The node.
    /// @param reason The reason, as text.
    function ban(uint256 poolId, address node, string calldata reason) external onlyManager(poolId) {
        _requireShort(reason);
        if (nodeBanned[poolId][node]) revert BanUnchanged(poolId, node);
        nodeBanned[poolId][node] = true;
        emit NodeBanned(poolId, node, reason);
        if (_members[poolId][node].provider != address(0)) _depart(poolId, node, Departure.Banned, reason);
    }

    /// @notice Lifts a node's ban. Only the manager may call this.
    /// @param poolId The pool.
    /// @param node The node.
    function unban(uint256 poolId, address node) external onlyManager(poolId) {
        if (!nodeBanned[poolId][node]) revert BanUnchanged(poolId, node);
        nodeBanned[poolId][node] = false;
        emit NodeUnbanned(poolId, node);
    }

    /// @notice Bans a provider until `unbanProvider`: none of its nodes may join or submit work. They may still submit
    /// work under leases that expire within the notice period, because these may have been signed before the ban. Only
    /// the manager may call this.
    /// @param poolId The pool.
    /// @param provider The provider.
    /// @param reason The reason, as text.
    function banProvider(uint256 poolId, address provider, string calldata reason) external onlyManager(poolId) {
        _requireShort(reason);
        if (providerBanned(poolId, provider)) revert BanUnchanged(poolId, provider);
        _bannedHeldUntil[poolId][provider] = _noticeEnd(poolId);
        emit ProviderBanned(poolId, provider, reason);
    }

    /// @notice Lifts a provider's ban. Only the manager may call this.
    /// @param poolId The pool.
    /// @param provider The provider.
    function unbanProvider(uint256 poolId, address provider) external onlyManager(poolId) {
        if (!providerBanned(poolId, provider)) revert BanUnchanged(poolId, provider);
        _bannedHeldUntil[poolId][provider] = 0;
        emit ProviderUnbanned(poolId, provider);
    }

    /// @notice Returns a node's membership; its provider is zero if the node is not a member now.
    /// @param poolId The pool.
    /// @param node The node.
    function membershipOf(uint256 poolId, address node) external view returns (Membership memory) {
        return _members[poolId][node];
    }

    /// @notice Returns the number of a pool's members.
    /// @param poolId The pool.
    function memberCount(uint256 poolId) external view returns (uint256) {
        return _pools[poolId].memberCount;
    }

    /// @notice Returns the EIP-712 struct hash of an invite, which the node's signed `Join` contains.
    /// @param invite The invite; its pool's domain is part of the hash.
    function inviteHash(Invite calldata invite) external view returns (bytes32) {
        return _hashInvite(_pools[invite.poolId].domainId, invite);
    }

    /// @notice Returns whether a provider, with all its nodes, is banned from a pool.
    /// @param poolId The pool.
    /// @param provider The provider.
    function providerBanned(uint256 poolId, address provider) public view returns (bool) {
        return _bannedHeldUntil[poolId][provider] != 0;
    }

    /// @dev Returns the provider of a node. Reverts unless the node is a member, or a former member that may still use
    /// a lease that expires at `leaseExpiry`.
    function _requireStanding(uint256 poolId, address node, uint256 leaseExpiry)
        internal
        view
        returns (address provider)
    {
        Membership storage member = _members[poolId][node];
        provider = member.provider;
        if (provider == address(0)) {
            if (leaseExpiry > member.heldUntil) revert NotMember(poolId, node);
            provider = registry.payeeOf(node);
        } else if (registry.providerOf(node) == address(0)) {
            revert NotRegistered(node);
        }
        uint256 heldUntil = _bannedHeldUntil[poolId][provider];
        if (heldUntil != 0 && leaseExpiry > heldUntil) revert Banned(poolId, provider);
    }

    function _depart(uint256 poolId, address node, Departure cause, string memory reason) private {
        Membership storage member = _members[poolId][node];
        (address provider, uint128 stakeLock) = (member.provider, member.stakeLock);
        member.provider = address(0);
        member.stakeLock = 0;
        member.heldUntil = _noticeEnd(poolId);
        --_pools[poolId].memberCount;
        emit MemberLeft(poolId, node, provider, cause, reason);
        stakeManager.unlockMembership(provider, stakeLock);
    }

    function _useInvite(
        uint256 domainId,
        Invite calldata invite,
        bytes calldata orchestratorSignature,
        bytes calldata nodeSignature
    ) private {
        _requireShort(invite.url);
        if (block.timestamp > invite.expiry) revert SignatureExpired(invite.expiry);
        if (inviteUsed[invite.poolId][invite.nonce]) revert InviteUsed(invite.poolId, invite.nonce);
        bytes32 structHash = _hashInvite(domainId, invite);
        address signer = _signer(structHash, orchestratorSignature);
        if (!isOrchestrator(invite.poolId, signer)) revert BadInvite(invite.poolId, signer);
        if (
            msg.sender != invite.node
                && _signer(keccak256(abi.encode(_JOIN, structHash)), nodeSignature) != invite.node
        ) revert NodeNotWilling(invite.node);
        inviteUsed[invite.poolId][invite.nonce] = true;
    }

    function _hashInvite(uint256 domainId, Invite calldata invite) private pure returns (bytes32) {
        return keccak256(
            abi.encode(
                _INVITE,
                invite.poolId,
                domainId,
                invite.node,
                invite.nonce,
                invite.expiry,
                keccak256(bytes(invite.url))
            )
        );
    }

    /// @dev Returns the signer of the struct; zero if the signature is invalid. So an invalid signature never counts as
    /// a node's, because ComputeRegistry refuses a node with the zero address.
    function _signer(bytes32 structHash, bytes calldata signature) private view returns (address signer) {
        (signer,,) = ECDSA.tryRecoverCalldata(_hashTypedDataV4(structHash), signature);
    }
}
