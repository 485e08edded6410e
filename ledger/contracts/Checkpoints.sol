// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IComputePools} from "./interfaces/IComputePools.sol";

/// @title Checkpoint announcements
/// @notice The publisher announces policy versions here, so that clients need not trust a relay for the newest one. The
/// hash of an announcement's block is one source of the seeds.
contract Checkpoints {
    /// @notice One announced checkpoint.
    /// @param version The policy's version.
    /// @param attempt Number of the attempt at publishing this version.
    /// @param blockNumber The block of the announcement.
    /// @param announcedAt Unix time in seconds of the announcement.
    /// @param digest The version digest; zero if nothing was announced.
    struct Announcement {
        uint64 version;
        uint32 attempt;
        uint64 blockNumber;
        uint64 announcedAt;
        bytes32 digest;
    }

    /// @notice The most by which one announcement may raise a run's version; a run begins at version zero. An
    /// orchestrator leases at most 64 steps ahead of a version, so a trainer never needs more than 65.
    uint64 public constant MAX_ADVANCE = 256;
    /// @notice The ComputePools contract, which knows the publisher.
    IComputePools public immutable pools;

    mapping(uint256 poolId => mapping(bytes32 run => mapping(uint64 version => Announcement))) private _announcements;
    mapping(uint256 poolId => mapping(bytes32 run => uint64 version)) private _latest;

    /// @notice A checkpoint was announced.
    event CheckpointAnnounced(
        uint256 indexed poolId, bytes32 indexed run, uint64 indexed version, uint32 attempt, bytes32 digest
    );

    /// @notice The caller is not the pool's publisher.
    error NotPublisher(uint256 poolId, address caller);
    /// @notice (version, attempt) must be above the run's latest.
    error NotNewer(uint64 latestVersion, uint32 latestAttempt);
    /// @notice One announcement raises the version by at most `MAX_ADVANCE`; `highest` is the highest allowed now.
    error TooFarAhead(uint64 version, uint256 highest);
    /// @notice The digest must not be zero.
    error NoDigest();

    /// @notice Sets the pools contract, which can't be changed later.
    /// @param pools_ The ComputePools contract.
    constructor(IComputePools pools_) {
        pools = pools_;
    }

    /// @notice Announces a checkpoint. Only the pool's publisher may call this. Versions only increase, and by at most
    /// `MAX_ADVANCE` at a time, so that a single announcement can't use up a run's version numbers.
    /// @param poolId The pool.
    /// @param run The run within the pool.
    /// @param version The policy's version.
    /// @param attempt Number of the attempt at publishing this version; a higher one replaces the lower.
    /// @param digest The version digest of the full content.
    function announce(uint256 poolId, bytes32 run, uint64 version, uint32 attempt, bytes32 digest) external {
        if (!pools.isPublisher(poolId, msg.sender)) revert NotPublisher(poolId, msg.sender);
        if (digest == 0) revert NoDigest();
        Announcement storage latest = _announcements[poolId][run][_latest[poolId][run]];
        if (latest.digest != 0) {
            bool newer = version > latest.version || (version == latest.version && attempt > latest.attempt);
            if (!newer) revert NotNewer(latest.version, latest.attempt);
        }
        uint256 highest = uint256(latest.version) + MAX_ADVANCE;
        if (version > highest) revert TooFarAhead(version, highest);
        _latest[poolId][run] = version;
        _announcements[poolId][run][version] = Announcement({
            version: version,
            attempt: attempt,
            blockNumber: uint64(block.number),
            announcedAt: uint64(block.timestamp),
            digest: digest
        });
        emit CheckpointAnnounced(poolId, run, version, attempt, digest);
    }

    /// @notice Returns the newest attempt announced for a version; digest zero if there is none.
    /// @param poolId The pool.
    /// @param run The run within the pool.
    /// @param version The policy's version.
    function announcementOf(uint256 poolId, bytes32 run, uint64 version) external view returns (Announcement memory) {
        return _announcements[poolId][run][version];
    }

    /// @notice Returns the run's newest announcement; digest zero if there is none.
    /// @param poolId The pool.
    /// @param run The run within the pool.
    function latestOf(uint256 poolId, bytes32 run) external view returns (Announcement memory) {
        return _announcements[poolId][run][_latest[poolId][run]];
    }
}
