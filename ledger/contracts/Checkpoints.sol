// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IComputePools} from "./interfaces/IComputePools.sol";

/// @title Checkpoint announcements
/// @notice The publisher announces the policy's versions here, so that clients learn the newest one without trusting a
/// relay. The hash of the block of an announcement is part of the seed of the slots that use this version.
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

    /// @notice One announcement may raise the version of a run by at most this number. The first version of a run is at
    /// most this number, too. A trainer needs at most 65, because an orchestrator leases at most 64 steps ahead of a
    /// version.
    uint64 public constant MAX_ADVANCE = 256;
    /// @notice The ComputePools contract, which holds the publisher's key.
    IComputePools public immutable pools;

    mapping(uint256 poolId => mapping(bytes32 run => mapping(uint64 version => Announcement))) private _announcements;
    mapping(uint256 poolId => mapping(bytes32 run => uint64 version)) private _latest;

    /// @notice A checkpoint was announced.
    event CheckpointAnnounced(
        uint256 indexed poolId, bytes32 indexed run, uint64 indexed version, uint32 attempt, bytes32 digest
    );

    /// @notice The caller is not the pool's publisher.
    error NotPublisher(uint256 poolId, address caller);
    /// @notice The pair (version, attempt) must be above the latest one of the run.
    error NotNewer(uint64 latestVersion, uint32 latestAttempt);
    /// @notice One announcement may raise the version by `MAX_ADVANCE` at most; `highest` is the highest allowed now.
    error TooFarAhead(uint64 version, uint256 highest);
    /// @notice The digest must not be zero.
    error NoDigest();

    /// @notice Sets the pools contract, which can't be changed later.
    /// @param pools_ The ComputePools contract.
    constructor(IComputePools pools_) {
        pools = pools_;
    }

    /// @notice Announces a checkpoint. Only the pool's publisher may call this. Versions only increase, by at most
    /// `MAX_ADVANCE` per announcement, so that one announcement of a very high version can't block all later ones.
    /// @param poolId The pool.
    /// @param run The run within the pool.
    /// @param version The policy's version.
    /// @param attempt Number of the attempt at publishing this version; a higher attempt replaces a lower one.
    /// @param digest The version digest over all files.
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

    /// @notice Returns the newest announced attempt at a version; its digest is zero if there is none.
    /// @param poolId The pool.
    /// @param run The run within the pool.
    /// @param version The policy's version.
    function announcementOf(uint256 poolId, bytes32 run, uint64 version) external view returns (Announcement memory) {
        return _announcements[poolId][run][version];
    }

    /// @notice Returns the newest announcement of a run; its digest is zero if there is none.
    /// @param poolId The pool.
    /// @param run The run within the pool.
    function latestOf(uint256 poolId, bytes32 run) external view returns (Announcement memory) {
        return _announcements[poolId][run][_latest[poolId][run]];
    }
}
