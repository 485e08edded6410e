// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {MusterToken} from "./MusterToken.sol";
import {IComputePools, Terms} from "./interfaces/IComputePools.sol";
import {IComputeRegistry} from "./interfaces/IComputeRegistry.sol";
import {IDomainRegistry} from "./interfaces/IDomainRegistry.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {Rewards} from "./work/Rewards.sol";
import {WorkSignatures} from "./work/WorkSignatures.sol";
import {Lease, Outcome, Status, Submission, Verdict, Work, WorkView} from "./work/WorkTypes.sol";

/// @title From lease to money
/// @notice Work is submitted under a lease, judged, disputed at most once, and becomes final: paid, unpaid or slashed.
/// A step that nobody takes in time never costs the contributor anything: no first verdict, no guilt; no second
/// verdict, no penalty.
/// @dev A deadline's own second still counts; what follows a deadline needs a later second. Every batch goes on past
/// an item that it refuses, and says why by the error that the item alone would have had.
contract WorkLedger is WorkSignatures, Rewards {
    /// @dev What one batch has asked ComputePools already: its items are mostly of one pool and one version.
    struct Docket {
        uint256 termsPool;
        uint256 termsVersion;
        Terms terms;
        uint256 seatPool;
        bool seated;
    }

    /// @notice The most items of a batch.
    uint256 public constant MAX_BATCH = 256;

    /// @notice Where pools are.
    IComputePools public immutable pools;
    /// @notice Where nodes are registered.
    IComputeRegistry public immutable registry;
    /// @notice Where stake is.
    IStakeManager public immutable stakeManager;
    /// @notice Where domains are, which say where penalties go.
    IDomainRegistry public immutable domains;

    mapping(bytes32 key => Work) private _works;
    mapping(bytes32 key => address) private _disputers;

    /// @notice Work was submitted and its reward and penalty are set aside.
    event WorkSubmitted(
        uint256 indexed poolId,
        address indexed node,
        bytes32 indexed key,
        bytes32 run,
        uint64 step,
        uint32 index,
        uint64 version,
        bytes32 digest,
        bytes32 sha256Hash,
        uint64 units
    );
    /// @notice An item of `submitBatch` was refused; `reason` is the error that it alone would have reverted with.
    event WorkRefused(bytes32 indexed key, bytes reason);
    /// @notice A validator gave its verdict; one that is decisive is the second and makes the work final.
    event VerdictGiven(
        uint256 indexed poolId,
        address indexed node,
        bytes32 indexed key,
        address validator,
        Outcome outcome,
        uint16 reason,
        bytes32 auditHash,
        bool decisive
    );
    /// @notice An item of `judge` was refused; `reason` is the selector of the error.
    event VerdictRefused(bytes32 indexed key, address indexed validator, bytes4 reason);
    /// @notice Somebody disputes a verdict.
    event WorkDisputed(
        uint256 indexed poolId, address indexed node, bytes32 indexed key, address disputer, bytes32 evidenceHash
    );
    /// @notice Work is final: `paid` accrued to its provider, `slashed` was taken from its stake.
    event WorkFinal(
        uint256 indexed poolId,
        address indexed node,
        bytes32 indexed key,
        Outcome outcome,
        uint256 paid,
        uint256 slashed
    );
    /// @notice Nobody judged the work in time; it is unpaid and blameless.
    event WorkExpired(uint256 indexed poolId, address indexed node, bytes32 indexed key);

    /// @notice The batch has `length` items; `limit` is the most.
    error BatchTooLong(uint256 length, uint256 limit);
    /// @notice The lease held until `expiry`.
    error LeaseExpired(uint64 expiry);
    /// @notice Work must be 1 to `maxUnits` units.
    error UnitsOutOfRange(uint64 units, uint64 maxUnits);
    /// @notice This slot's work was submitted already.
    error WorkExists(bytes32 key);
    /// @notice The node neither calls nor has signed.
    error NodeNotWilling(address node);
    /// @notice There is no such work, or its status does not allow this.
    error WrongStatus(bytes32 key, Status status);
    /// @notice The time for this step ended at `deadline`.
    error TooLate(bytes32 key, uint256 deadline);
    /// @notice The caller is not a validator of the work's pool.
    error NotValidator(uint256 poolId, address caller);
    /// @notice The caller is the node, its provider, the first judge or the disputer, and can't judge this.
    error ConflictOfInterest(bytes32 key, address caller);
    /// @notice The verdict is on another file, or on other units, than what was submitted.
    error OtherSubmission(bytes32 key, bytes32 sha256Hash, uint64 units);
    /// @notice A verdict must accept, reject, or call the work forged.
    error NoOutcome(bytes32 key);
    /// @notice Only the node, its provider, or a validator other than the judge may dispute.
    error NotDisputant(bytes32 key, address caller);
    /// @notice The signature was to be used by `deadline`.
    error SignatureExpired(uint256 deadline);

    /// @notice Fixes the other contracts for ever.
    /// @param pools_ Where pools are.
    /// @param registry_ Where nodes are registered.
    /// @param stakeManager_ Where stake is.
    /// @param token_ The token that rewards are in.
    /// @param domains_ Where domains are.
    constructor(
        IComputePools pools_,
        IComputeRegistry registry_,
        IStakeManager stakeManager_,
        MusterToken token_,
        IDomainRegistry domains_
    ) Rewards(token_) {
        pools = pools_;
        registry = registry_;
        stakeManager = stakeManager_;
        domains = domains_;
    }

    /// @notice Submits work under a lease and sets its reward and penalty aside. The node calls, or anyone who carries
    /// its signature.
    /// @param lease The lease.
    /// @param leaseSignature The orchestrator's EIP-712 `Lease`.
    /// @param sha256Hash SHA-256 of the file.
    /// @param units How much work it holds, 1 to the lease's `maxUnits`.
    /// @param nodeSignature The node's EIP-712 `Work`; may be empty if the node calls.
    function submitWork(
        Lease calldata lease,
        bytes calldata leaseSignature,
        bytes32 sha256Hash,
        uint64 units,
        bytes calldata nodeSignature
    ) external {
        bytes32 key = _keyOf(lease);
        if (_works[key].status != Status.None) revert WorkExists(key);
        if (block.timestamp > lease.expiry) revert LeaseExpired(lease.expiry);
        if (units == 0 || units > lease.maxUnits || units > type(uint56).max) {
            revert UnitsOutOfRange(units, lease.maxUnits);
        }
        bytes32 hash = _hashLease(lease);
        if (msg.sender != lease.node && _workSigner(hash, sha256Hash, units, nodeSignature) != lease.node) {
            revert NodeNotWilling(lease.node);
        }
        (address provider, uint32 terms, uint128 penalty) =
            pools.openWork(lease.poolId, lease.node, _leaseSigner(hash, leaseSignature), units);
        Work storage work = _works[key];
        work.node = lease.node;
        work.poolId = uint32(lease.poolId); // ComputePools numbers pools within 32 bits.
        work.terms = terms;
        work.status = Status.Submitted;
        work.since = uint40(block.timestamp);
        work.units = uint56(units);
        work.sha256Hash = sha256Hash;
        emit WorkSubmitted(
            lease.poolId,
            lease.node,
            key,
            lease.run,
            lease.step,
            lease.index,
            lease.version,
            lease.digest,
            sha256Hash,
            units
        );
        stakeManager.lockWork(provider, penalty);
    }

    /// @notice Submits many pieces of work; one that is refused does not stop the others.
    /// @param items At most `MAX_BATCH`; each needs its node's signature.
    function submitBatch(Submission[] calldata items) external {
        _requireBatch(items.length);
        for (uint256 i; i < items.length; ++i) {
            Submission calldata item = items[i];
            try this.submitWork(item.lease, item.leaseSignature, item.sha256Hash, item.units, item.nodeSignature) {}
            catch (bytes memory reason) {
                emit WorkRefused(_keyOf(item.lease), reason);
            }
        }
    }

    /// @notice Gives verdicts: a first one on submitted work, a decisive one on disputed work, and never one in place of
    /// the other. Each names the submission that was judged, since a reorganisation may have put another one under its
    /// key. An item that is refused does not stop the others. Only validators of the works' pools may.
    /// @param verdicts At most `MAX_BATCH`.
    function judge(Verdict[] calldata verdicts) external {
        _requireBatch(verdicts.length);
        Docket memory docket;
        for (uint256 i; i < verdicts.length; ++i) {
            bytes4 refusal = _judge(verdicts[i], docket);
            if (refusal != 0) emit VerdictRefused(verdicts[i].key, msg.sender, refusal);
        }
    }

    /// @notice Disputes a provisional verdict, once, within the challenge window. The node, its provider or another
    /// validator calls; anyone may carry the node's signature.
    /// @param key The work.
    /// @param evidenceHash Hash of what the disputant has to say.
    /// @param deadline Unix time in seconds until which the signature holds; not used without one.
    /// @param signature The node's EIP-712 `Dispute`; empty if the disputant calls.
    function dispute(bytes32 key, bytes32 evidenceHash, uint256 deadline, bytes calldata signature) external {
        Work storage work = _works[key];
        if (work.status != Status.Provisional) revert WrongStatus(key, work.status);
        uint256 end = _deadline(Status.Provisional, work.since, _termsOf(work));
        if (block.timestamp > end) revert TooLate(key, end);
        address disputer = _disputant(key, work, evidenceHash, deadline, signature);
        work.status = Status.Disputed;
        work.since = uint40(block.timestamp);
        _disputers[key] = disputer;
        emit WorkDisputed(work.poolId, work.node, key, disputer, evidenceHash);
    }

    /// @notice Makes work final whose windows have ended; keys that are not due are passed over. Anyone may.
    /// @param keys At most `MAX_BATCH`.
    function finalize(bytes32[] calldata keys) external {
        _requireBatch(keys.length);
        Docket memory docket;
        for (uint256 i; i < keys.length; ++i) _finalize(keys[i], docket);
    }

    /// @notice Closes work that nobody judged in time, unpaid and blameless; keys that are not due are passed over.
    /// Anyone may.
    /// @param keys At most `MAX_BATCH`.
    function expire(bytes32[] calldata keys) external {
        _requireBatch(keys.length);
        Docket memory docket;
        for (uint256 i; i < keys.length; ++i) {
            Work storage work = _works[keys[i]];
            if (work.status != Status.Submitted) continue;
            Terms memory terms = _termsOf(work, docket);
            if (block.timestamp <= _deadline(Status.Submitted, work.since, terms)) continue;
            work.status = Status.Expired;
            work.since = uint40(block.timestamp);
            emit WorkExpired(work.poolId, work.node, keys[i]);
            pools.release(work.poolId, _product(terms.pricePerUnit, work.units));
            stakeManager.unlockWork(registry.payeeOf(work.node), _product(terms.penaltyPerUnit, work.units));
        }
    }

    /// @notice Everything that is known of a piece of work; status `None` if it was never submitted.
    /// @param key The work.
    function workOf(bytes32 key) external view returns (WorkView memory) {
        Work storage work = _works[key];
        Terms memory terms = _termsOf(work);
        return WorkView({
            node: work.node,
            provider: registry.payeeOf(work.node),
            poolId: work.poolId,
            units: work.units,
            sha256Hash: work.sha256Hash,
            status: work.status,
            outcome: work.outcome,
            reason: work.reason,
            judge: work.judge,
            disputer: _disputers[key],
            since: work.since,
            deadline: _deadline(work.status, work.since, terms),
            reward: _product(terms.pricePerUnit, work.units),
            penalty: _product(terms.penaltyPerUnit, work.units)
        });
    }

    /// @dev Takes one verdict, or returns the selector of the error that refuses it.
    function _judge(Verdict calldata verdict, Docket memory docket) private returns (bytes4) {
        bytes32 key = verdict.key;
        Work storage work = _works[key];
        Status status = work.status;
        bool decisive = verdict.decisive;
        if (status != (decisive ? Status.Disputed : Status.Submitted)) return WrongStatus.selector;
        if (verdict.sha256Hash != work.sha256Hash || verdict.units != work.units) return OtherSubmission.selector;
        if (verdict.outcome == Outcome.None) return NoOutcome.selector;
        (address node, uint256 poolId) = (work.node, work.poolId);
        if (!_seated(poolId, docket)) return NotValidator.selector;
        if (msg.sender == node || msg.sender == registry.payeeOf(node)) return ConflictOfInterest.selector;
        if (decisive && (msg.sender == work.judge || msg.sender == _disputers[key])) return ConflictOfInterest.selector;
        Terms memory terms = _termsOf(work, docket);
        if (block.timestamp > _deadline(status, work.since, terms)) return TooLate.selector;
        emit VerdictGiven(
            poolId, node, key, msg.sender, verdict.outcome, verdict.reason, verdict.auditHash, decisive
        );
        work.reason = verdict.reason;
        if (decisive) {
            _close(key, work, terms, verdict.outcome);
        } else {
            work.status = Status.Provisional;
            work.outcome = verdict.outcome;
            work.judge = msg.sender;
            work.since = uint40(block.timestamp);
        }
        return 0;
    }

    /// @dev A dispute that nobody decided takes the penalty off the first verdict.
    function _finalize(bytes32 key, Docket memory docket) private {
        Work storage work = _works[key];
        Status status = work.status;
        if (status != Status.Provisional && status != Status.Disputed) return;
        Terms memory terms = _termsOf(work, docket);
        if (block.timestamp <= _deadline(status, work.since, terms)) return;
        Outcome outcome = work.outcome;
        if (status == Status.Disputed && outcome == Outcome.Forged) outcome = Outcome.Rejected;
        _close(key, work, terms, outcome);
    }

    /// @dev The only way to `Final`: pays, releases or slashes, once.
    function _close(bytes32 key, Work storage work, Terms memory terms, Outcome outcome) private {
        work.status = Status.Final;
        work.outcome = outcome;
        work.since = uint40(block.timestamp);
        (uint256 poolId, address node) = (work.poolId, work.node);
        address provider = registry.payeeOf(node);
        uint128 reward = _product(terms.pricePerUnit, work.units);
        uint128 penalty = _product(terms.penaltyPerUnit, work.units);
        uint128 slashed;
        stakeManager.unlockWork(provider, penalty);
        if (outcome == Outcome.Accepted) {
            _accrue(poolId, provider, reward);
            pools.settle(poolId, reward);
        } else {
            pools.release(poolId, reward);
            reward = 0;
        }
        if (outcome == Outcome.Forged) {
            slashed = stakeManager.slash(provider, penalty, domains.reserveOf(pools.domainOf(poolId)));
            pools.expel(poolId, node);
        }
        emit WorkFinal(poolId, node, key, outcome, reward, slashed);
    }

    function _disputant(
        bytes32 key,
        Work storage work,
        bytes32 evidenceHash,
        uint256 deadline,
        bytes calldata signature
    ) private view returns (address) {
        address node = work.node;
        if (signature.length != 0) {
            if (block.timestamp > deadline) revert SignatureExpired(deadline);
            if (_disputeSigner(key, evidenceHash, deadline, signature) != node) revert NodeNotWilling(node);
            return node;
        }
        if (msg.sender == node || msg.sender == registry.payeeOf(node)) return msg.sender;
        if (msg.sender == work.judge || !pools.isValidator(work.poolId, msg.sender)) {
            revert NotDisputant(key, msg.sender);
        }
        return msg.sender;
    }

    function _seated(uint256 poolId, Docket memory docket) private view returns (bool) {
        if (docket.seatPool != poolId) {
            docket.seatPool = poolId;
            docket.seated = pools.isValidator(poolId, msg.sender);
        }
        return docket.seated;
    }

    function _termsOf(Work storage work, Docket memory docket) private view returns (Terms memory) {
        (uint256 poolId, uint256 version) = (work.poolId, work.terms);
        if (docket.termsPool != poolId || docket.termsVersion != version) {
            docket.termsPool = poolId;
            docket.termsVersion = version;
            docket.terms = _termsOf(work);
        }
        return docket.terms;
    }

    function _termsOf(Work storage work) private view returns (Terms memory) {
        return pools.termsAt(work.poolId, work.terms);
    }

    /// @dev Unix time in seconds until which the next step may come; zero if none may.
    function _deadline(Status status, uint256 since, Terms memory terms) private pure returns (uint64) {
        if (status == Status.Submitted) return uint64(since + terms.judgePeriod);
        if (status == Status.Provisional) return uint64(since + terms.challengePeriod);
        if (status == Status.Disputed) return uint64(since + terms.disputePeriod);
        return 0;
    }

    /// @dev Never overflows: ComputePools refused the submission if it did.
    function _product(uint128 perUnit, uint256 units) private pure returns (uint128) {
        return uint128(perUnit * units);
    }

    function _keyOf(Lease calldata lease) private pure returns (bytes32) {
        return workKey(lease.poolId, lease.run, lease.node, lease.step, lease.index);
    }

    function _requireBatch(uint256 length) private pure {
        if (length > MAX_BATCH) revert BatchTooLong(length, MAX_BATCH);
    }
}
