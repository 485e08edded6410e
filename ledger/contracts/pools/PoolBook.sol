// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {IDomainRegistry} from "../interfaces/IDomainRegistry.sol";
import {IStakeManager} from "../interfaces/IStakeManager.sol";
import {IComputePools, Terms} from "../interfaces/IComputePools.sol";
import {TermsRules} from "./TermsRules.sol";

/// @title Pools, their owners and their terms
abstract contract PoolBook is IComputePools {
    /// @notice State of a pool.
    enum Status {
        None,
        Pending,
        Active,
        Ended
    }

    /// @notice A pool.
    /// @param owner The account that controls escrow, terms and roles.
    /// @param status The status.
    /// @param termsVersion The version of the terms that is in force before `nextTermsAt`, or always if that is zero.
    /// @param nextTermsAt Unix time in seconds from which version `termsVersion + 1` is in force; zero if it was not
    /// set.
    /// @param pendingOwner The account to which the owner offered the pool; zero if there is none.
    /// @param domainId The domain of the pool.
    /// @param memberCount The number of member nodes.
    /// @param dataUri URI of the pool's description.
    struct Pool {
        address owner;
        Status status;
        uint32 termsVersion;
        uint40 nextTermsAt;
        address pendingOwner;
        uint64 domainId;
        uint32 memberCount;
        string dataUri;
    }

    /// @notice The maximum length of a text, in bytes.
    uint256 public constant MAX_TEXT = 512;
    /// @notice The maximum number of items in a batch.
    uint256 public constant MAX_BATCH = 256;

    /// @notice The DomainRegistry contract.
    IDomainRegistry public immutable domains;
    /// @notice The StakeManager contract.
    IStakeManager public immutable stakeManager;
    /// @notice The WorkLedger contract, the only one that spends escrow.
    address public immutable workLedger;

    /// @notice Number of pools; their ids are 1 to this number.
    uint256 public poolCount;

    mapping(uint256 poolId => Pool) internal _pools;
    mapping(uint256 poolId => mapping(uint32 version => Terms)) private _terms;
    mapping(uint256 poolId => uint64) private _heldUntil;

    /// @notice A pool was created; it is pending.
    event PoolCreated(uint256 indexed poolId, uint256 indexed domainId, address indexed owner, string dataUri);
    /// @notice A pool was activated: it takes members and work.
    event PoolActivated(uint256 indexed poolId);
    /// @notice A pool was ended: it takes no new members, and work only under leases that were signed before.
    event PoolEnded(uint256 indexed poolId);
    /// @notice The URI of a pool's description was changed.
    event PoolDataUriSet(uint256 indexed poolId, string dataUri);
    /// @notice An owner offered a pool to another account.
    event PoolTransferStarted(uint256 indexed poolId, address indexed from, address indexed to);
    /// @notice A pool has a new owner.
    event PoolTransferred(uint256 indexed poolId, address indexed from, address indexed to);
    /// @notice A version of the terms will be in force from `effectiveAt`.
    event TermsSet(uint256 indexed poolId, uint32 version, uint256 effectiveAt, Terms terms);

    /// @notice There is no such pool.
    error NoSuchPool(uint256 poolId);
    /// @notice The pool's status does not allow this.
    error WrongStatus(uint256 poolId, Status status);
    /// @notice The domain does not exist, or is closed for new pools and members.
    error DomainClosed(uint256 domainId);
    /// @notice Only the pool's owner may do this.
    error NotOwner(uint256 poolId, address caller);
    /// @notice The notice period of an active pool can't become shorter than the present one, `least`.
    error NoticeTooShort(uint32 noticePeriod, uint32 least);
    /// @notice The pool was not offered to the caller.
    error NotOffered(uint256 poolId, address caller);
    /// @notice Only the WorkLedger contract may call this.
    error NotAllowed(address caller);
    /// @notice The text has `length` bytes; at most `limit` are allowed.
    error TextTooLong(uint256 length, uint256 limit);
    /// @notice The batch has `length` items; at most `limit` are allowed.
    error BatchTooLong(uint256 length, uint256 limit);

    modifier onlyOwner(uint256 poolId) {
        _requireOwner(poolId);
        _;
    }

    modifier onlyWorkLedger() {
        _requireWorkLedger();
        _;
    }

    constructor(IDomainRegistry domains_, IStakeManager stakeManager_, address workLedger_) {
        domains = domains_;
        stakeManager = stakeManager_;
        workLedger = workLedger_;
    }

    /// @notice Activates a pending pool for members and work. Only the owner may call this.
    /// @param poolId The pool.
    function activate(uint256 poolId) external onlyOwner(poolId) {
        Pool storage pool = _pools[poolId];
        if (pool.status != Status.Pending) revert WrongStatus(poolId, pool.status);
        _requireDomain(pool.domainId);
        pool.status = Status.Active;
        emit PoolActivated(poolId);
    }

    /// @notice Ends a pool permanently: it takes no new members or work. Nodes can still submit work under leases that
    /// expire within the notice period, because these may have been signed before. Only the owner may call this.
    /// @param poolId The pool.
    function end(uint256 poolId) external onlyOwner(poolId) {
        Pool storage pool = _pools[poolId];
        if (pool.status == Status.Ended) revert WrongStatus(poolId, pool.status);
        _heldUntil[poolId] = _noticeEnd(poolId);
        pool.status = Status.Ended;
        emit PoolEnded(poolId);
    }

    /// @notice Sets the URI of the pool's description. Only the owner may call this.
    /// @param poolId The pool.
    /// @param dataUri The URI.
    function setDataUri(uint256 poolId, string calldata dataUri) external onlyOwner(poolId) {
        _requireShort(dataUri);
        _pools[poolId].dataUri = dataUri;
        emit PoolDataUriSet(poolId, dataUri);
    }

    /// @notice Offers the pool to another owner, which has to accept it. Only the owner may call this.
    /// @param poolId The pool.
    /// @param newOwner The account that may accept the pool; zero withdraws an earlier offer.
    function transferPool(uint256 poolId, address newOwner) external onlyOwner(poolId) {
        _pools[poolId].pendingOwner = newOwner;
        emit PoolTransferStarted(poolId, msg.sender, newOwner);
    }

    /// @notice Accepts the ownership of a pool that was offered to the caller.
    /// @param poolId The pool.
    function acceptPool(uint256 poolId) external {
        Pool storage pool = _pools[poolId];
        if (pool.pendingOwner != msg.sender) revert NotOffered(poolId, msg.sender);
        emit PoolTransferred(poolId, pool.owner, msg.sender);
        pool.owner = msg.sender;
        pool.pendingOwner = address(0);
    }

    /// @notice Sets new terms, which replace any terms that are not in force yet. The new terms of a pending pool are
    /// in force at once; those of an active pool are in force after the present notice period. The notice period of an
    /// active pool can't become shorter. Only the owner may call this.
    /// @param poolId The pool.
    /// @param terms The new terms.
    function setTerms(uint256 poolId, Terms calldata terms) external onlyOwner(poolId) {
        Pool storage pool = _pools[poolId];
        if (pool.status == Status.Ended) revert WrongStatus(poolId, pool.status);
        uint32 current = _termsVersion(pool);
        uint256 effectiveAt = block.timestamp;
        if (pool.status == Status.Active) {
            // A lease must stay payable for the notice period that was in force when it was signed. So this period must
            // not become shorter.
            uint32 notice = _terms[poolId][current].noticePeriod;
            if (terms.noticePeriod < notice) revert NoticeTooShort(terms.noticePeriod, notice);
            effectiveAt += notice;
        }
        pool.termsVersion = current;
        pool.nextTermsAt = SafeCast.toUint40(effectiveAt);
        _writeTerms(poolId, current + 1, effectiveAt, terms);
    }

    /// @notice Returns a pool; reverts if there is no pool with this id.
    /// @param poolId The pool.
    function poolOf(uint256 poolId) external view returns (Pool memory) {
        _requireExists(poolId);
        return _pools[poolId];
    }

    /// @notice Returns the terms in force now; reverts if there is no such pool.
    /// @param poolId The pool.
    function termsOf(uint256 poolId) external view returns (Terms memory) {
        _requireExists(poolId);
        return _terms[poolId][_termsVersion(_pools[poolId])];
    }

    /// @notice Returns the terms that were set but are not in force yet; `effectiveAt` is zero if there are none.
    /// @param poolId The pool.
    /// @return terms The pending terms.
    /// @return effectiveAt Unix time in seconds from which they are in force.
    function pendingTermsOf(uint256 poolId) external view returns (Terms memory terms, uint256 effectiveAt) {
        Pool storage pool = _pools[poolId];
        if (block.timestamp >= pool.nextTermsAt) return (terms, 0);
        return (_terms[poolId][pool.termsVersion + 1], pool.nextTermsAt);
    }

    /// @inheritdoc IComputePools
    function termsAt(uint256 poolId, uint32 version) external view returns (Terms memory) {
        return _terms[poolId][version];
    }

    /// @inheritdoc IComputePools
    function domainOf(uint256 poolId) external view returns (uint256) {
        return _pools[poolId].domainId;
    }

    function _create(uint256 domainId, Terms calldata terms, string calldata dataUri)
        internal
        returns (uint256 poolId)
    {
        _requireDomain(domainId);
        _requireShort(dataUri);
        poolId = ++poolCount;
        // Reverts if the id has more than 32 bits, because WorkLedger stores pool ids in 32 bits.
        SafeCast.toUint32(poolId);
        Pool storage pool = _pools[poolId];
        pool.owner = msg.sender;
        pool.status = Status.Pending;
        pool.termsVersion = 1;
        pool.domainId = SafeCast.toUint64(domainId);
        pool.dataUri = dataUri;
        emit PoolCreated(poolId, domainId, msg.sender, dataUri);
        _writeTerms(poolId, 1, block.timestamp, terms);
    }

    function _termsVersion(Pool storage pool) internal view returns (uint32) {
        uint256 nextTermsAt = pool.nextTermsAt;
        return nextTermsAt != 0 && block.timestamp >= nextTermsAt ? pool.termsVersion + 1 : pool.termsVersion;
    }

    function _termsInForce(uint256 poolId) internal view returns (Terms storage) {
        return _terms[poolId][_termsVersion(_pools[poolId])];
    }

    function _requireWorkLedger() internal view {
        if (msg.sender != workLedger) revert NotAllowed(msg.sender);
    }

    function _requireOwner(uint256 poolId) internal view {
        if (_pools[poolId].owner != msg.sender) revert NotOwner(poolId, msg.sender);
    }

    function _requireExists(uint256 poolId) internal view {
        if (_pools[poolId].status == Status.None) revert NoSuchPool(poolId);
    }

    function _requireActive(uint256 poolId, Pool storage pool) internal view {
        if (pool.status != Status.Active) revert WrongStatus(poolId, pool.status);
    }

    /// @dev Reverts unless the pool is active, or has ended and the lease expires within the notice period after that.
    function _requireTakesWork(uint256 poolId, Pool storage pool, uint256 leaseExpiry) internal view {
        if (pool.status == Status.Ended && leaseExpiry <= _heldUntil[poolId]) return;
        _requireActive(poolId, pool);
    }

    /// @dev Returns the end of a notice period that begins now, Unix time in seconds.
    function _noticeEnd(uint256 poolId) internal view returns (uint64) {
        return SafeCast.toUint64(block.timestamp + _termsInForce(poolId).noticePeriod);
    }

    function _requireDomain(uint256 domainId) internal view {
        if (!domains.isActive(domainId)) revert DomainClosed(domainId);
    }

    function _requireShort(string calldata text) internal pure {
        if (bytes(text).length > MAX_TEXT) revert TextTooLong(bytes(text).length, MAX_TEXT);
    }

    function _requireBatch(uint256 length) internal pure {
        if (length > MAX_BATCH) revert BatchTooLong(length, MAX_BATCH);
    }

    function _writeTerms(uint256 poolId, uint32 version, uint256 effectiveAt, Terms calldata terms) private {
        TermsRules.check(terms, stakeManager.unbondingPeriod());
        _terms[poolId][version] = terms;
        emit TermsSet(poolId, version, effectiveAt, terms);
    }
}
