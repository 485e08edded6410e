// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IComputePools} from "./interfaces/IComputePools.sol";

/// @title Audit secrets of validators
/// @notice A validator draws the rows that it audits by a secret. It commits to the secret beforehand, and reveals it
/// afterwards, so that anyone can repeat the draw.
/// @dev An epoch begins with the block after its commitment, and ends with the commitment to the next epoch. Block
/// numbers show the order: a submission in a block after `committedBlock` came after the commitment.
contract AuditSecrets {
    /// @notice A validator's commitment for one epoch.
    /// @param commitment keccak256(abi.encode(poolId, validator, epoch, secret)); zero if there is none.
    /// @param secret The secret, once revealed.
    /// @param committedBlock The block of the commitment.
    /// @param committedAt Unix time in seconds of the commitment.
    /// @param revealedAt Unix time in seconds of the reveal; zero before it.
    struct Commitment {
        bytes32 commitment;
        bytes32 secret;
        uint64 committedBlock;
        uint64 committedAt;
        uint64 revealedAt;
    }

    /// @notice The ComputePools contract, which holds the list of validators.
    IComputePools public immutable pools;

    /// @notice The newest epoch for which a validator has committed to a secret; zero if there is none.
    mapping(uint256 poolId => mapping(address validator => uint64)) public latestEpochOf;

    mapping(uint256 poolId => mapping(address validator => mapping(uint64 epoch => Commitment))) private _commitments;

    /// @notice A validator committed to a secret.
    event SecretCommitted(
        uint256 indexed poolId, address indexed validator, uint64 indexed epoch, bytes32 commitment
    );
    /// @notice A validator revealed its secret.
    event SecretRevealed(uint256 indexed poolId, address indexed validator, uint64 indexed epoch, bytes32 secret);

    /// @notice The caller is not a validator of the pool.
    error NotValidator(uint256 poolId, address caller);
    /// @notice The epoch must be above `latest`, the newest epoch of the caller.
    error EpochNotNewer(uint64 epoch, uint64 latest);
    /// @notice The commitment must not be zero.
    error NoCommitment();
    /// @notice The epoch's secret may be revealed only after the epoch, which ends when the caller commits to another.
    error EpochNotOver(uint64 epoch);
    /// @notice The secret of this epoch was already revealed.
    error RevealedAlready(uint64 epoch);
    /// @notice The secret does not match the caller's commitment.
    error WrongSecret(uint64 epoch);

    /// @notice Sets the pools contract, which can't be changed later.
    /// @param pools_ The ComputePools contract.
    constructor(IComputePools pools_) {
        pools = pools_;
    }

    /// @notice Commits the caller to a secret and begins an epoch. Only a validator of the pool may call this.
    /// @param poolId The pool.
    /// @param epoch Number of the epoch; at least 1, and above all earlier epochs of the caller.
    /// @param commitment keccak256(abi.encode(poolId, validator, epoch, secret)).
    function commit(uint256 poolId, uint64 epoch, bytes32 commitment) external {
        if (!pools.isValidator(poolId, msg.sender)) revert NotValidator(poolId, msg.sender);
        if (commitment == 0) revert NoCommitment();
        uint64 latest = latestEpochOf[poolId][msg.sender];
        if (epoch <= latest) revert EpochNotNewer(epoch, latest);
        latestEpochOf[poolId][msg.sender] = epoch;
        Commitment storage entry = _commitments[poolId][msg.sender][epoch];
        entry.commitment = commitment;
        entry.committedBlock = uint64(block.number);
        entry.committedAt = uint64(block.timestamp);
        emit SecretCommitted(poolId, msg.sender, epoch, commitment);
    }

    /// @notice Reveals the secret of an epoch that is over. A former validator may call this too.
    /// @param poolId The pool.
    /// @param epoch The epoch. If the caller is still a validator, it must have committed to a later epoch.
    /// @param secret The secret.
    function reveal(uint256 poolId, uint64 epoch, bytes32 secret) external {
        Commitment storage entry = _commitments[poolId][msg.sender][epoch];
        if (keccak256(abi.encode(poolId, msg.sender, epoch, secret)) != entry.commitment) revert WrongSecret(epoch);
        if (entry.revealedAt != 0) revert RevealedAlready(epoch);
        bool over = latestEpochOf[poolId][msg.sender] > epoch;
        if (!over && pools.isValidator(poolId, msg.sender)) revert EpochNotOver(epoch);
        entry.secret = secret;
        entry.revealedAt = uint64(block.timestamp);
        emit SecretRevealed(poolId, msg.sender, epoch, secret);
    }

    /// @notice Returns a validator's commitment for an epoch; all fields are zero if there is none.
    /// @param poolId The pool.
    /// @param validator The validator.
    /// @param epoch The epoch.
    function commitmentOf(uint256 poolId, address validator, uint64 epoch) external view returns (Commitment memory) {
        return _commitments[poolId][validator][epoch];
    }
}
