// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IComputePools} from "./interfaces/IComputePools.sol";

/// @title The secrets behind the validators' draws
/// @notice A validator binds itself to a secret before it draws with it and shows the secret afterwards, so that
/// anybody can repeat the draw.
/// @dev An epoch begins with the block after its commitment and ends with the commitment of the next one. No clock is
/// needed: `committedBlock` says which submissions the secret was bound before.
contract AuditSecrets {
    /// @notice What a validator has bound itself to for one epoch.
    /// @param commitment keccak256(abi.encode(poolId, validator, epoch, secret)); zero if there is none.
    /// @param secret The secret, once revealed.
    /// @param committedBlock The block of the commitment.
    /// @param committedAt Unix time in seconds of the commitment.
    /// @param revealedAt Unix time in seconds of the revelation; zero if it is still secret.
    struct Commitment {
        bytes32 commitment;
        bytes32 secret;
        uint64 committedBlock;
        uint64 committedAt;
        uint64 revealedAt;
    }

    /// @notice Where the validators' role is kept.
    IComputePools public immutable pools;

    /// @notice The newest epoch that a validator has bound itself for; zero if none.
    mapping(uint256 poolId => mapping(address validator => uint64)) public latestEpochOf;

    mapping(uint256 poolId => mapping(address validator => mapping(uint64 epoch => Commitment))) private _commitments;

    /// @notice A validator bound itself to a secret.
    event SecretCommitted(
        uint256 indexed poolId, address indexed validator, uint64 indexed epoch, bytes32 commitment
    );
    /// @notice A validator showed its secret.
    event SecretRevealed(uint256 indexed poolId, address indexed validator, uint64 indexed epoch, bytes32 secret);

    /// @notice The caller is not a validator of the pool.
    error NotValidator(uint256 poolId, address caller);
    /// @notice Epochs count up from 1; `latest` was committed already.
    error EpochNotNewer(uint64 epoch, uint64 latest);
    /// @notice The commitment must not be zero.
    error NoCommitment();
    /// @notice The epoch goes on until the next one is committed; its secret must wait.
    error EpochNotOver(uint64 epoch);
    /// @notice The secret was revealed already.
    error RevealedAlready(uint64 epoch);
    /// @notice The secret is not what the caller bound itself to.
    error WrongSecret(uint64 epoch);

    /// @notice Creates the record of secrets.
    /// @param pools_ Where the validators' role is kept.
    constructor(IComputePools pools_) {
        pools = pools_;
    }

    /// @notice Binds the caller to a secret and begins an epoch. Only a validator of the pool may.
    /// @param poolId The pool.
    /// @param epoch A number above every epoch that the caller committed before, from 1.
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

    /// @notice Shows the secret of an epoch that is over. One who is no validator any more may still do so.
    /// @param poolId The pool.
    /// @param epoch The epoch; the caller has committed a later one.
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

    /// @notice What a validator bound itself to for an epoch; all zero if nothing.
    /// @param poolId The pool.
    /// @param validator The validator.
    /// @param epoch The epoch.
    function commitmentOf(uint256 poolId, address validator, uint64 epoch) external view returns (Commitment memory) {
        return _commitments[poolId][validator][epoch];
    }
}
