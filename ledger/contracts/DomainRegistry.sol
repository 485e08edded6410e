// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Ownable, Ownable2Step} from "@openzeppelin/contracts/access/Ownable2Step.sol";
import {IDomainRegistry} from "./interfaces/IDomainRegistry.sol";

/// @title The fields of work
/// @notice The governor opens domains, says how their work is validated and where penalties go.
contract DomainRegistry is IDomainRegistry, Ownable2Step {
    /// @notice The longest name or URI, in bytes.
    uint256 public constant MAX_TEXT = 512;

    /// @notice How many domains there are; their ids are 1 to this.
    uint256 public domainCount;

    mapping(uint256 domainId => Domain) private _domains;

    /// @notice A domain was opened or described anew.
    event DomainSet(
        uint256 indexed domainId, string name, string uri, bytes32 validationHash, address indexed reserve
    );
    /// @notice A domain was opened to, or closed for, new pools and members.
    event DomainActiveSet(uint256 indexed domainId, bool active);

    /// @notice There is no such domain.
    error NoSuchDomain(uint256 domainId);
    /// @notice A name is needed.
    error NoName();
    /// @notice The text has `length` bytes; `limit` is the most.
    error TextTooLong(uint256 length, uint256 limit);

    /// @notice Creates an empty registry.
    /// @param governor Who opens and describes domains.
    constructor(address governor) Ownable(governor) {}

    /// @notice Opens a domain. Only the governor may.
    /// @param name What people call it.
    /// @param uri Where it is described.
    /// @param validationHash Hash of its validation parameters.
    /// @param reserve Where penalties go; zero burns them.
    /// @return domainId Its number, from 1.
    function createDomain(string calldata name, string calldata uri, bytes32 validationHash, address reserve)
        external
        onlyOwner
        returns (uint256 domainId)
    {
        domainId = ++domainCount;
        _domains[domainId].active = true;
        _set(domainId, name, uri, validationHash, reserve);
        emit DomainActiveSet(domainId, true);
    }

    /// @notice Describes a domain anew. Only the governor may.
    /// @param domainId The domain.
    /// @param name What people call it.
    /// @param uri Where it is described.
    /// @param validationHash Hash of its validation parameters.
    /// @param reserve Where penalties go; zero burns them.
    function updateDomain(
        uint256 domainId,
        string calldata name,
        string calldata uri,
        bytes32 validationHash,
        address reserve
    ) external onlyOwner {
        _requireExists(domainId);
        _set(domainId, name, uri, validationHash, reserve);
    }

    /// @notice Opens a domain to, or closes it for, new pools and members; what runs goes on. Only the governor may.
    /// @param domainId The domain.
    /// @param active Whether new pools and members are welcome.
    function setDomainActive(uint256 domainId, bool active) external onlyOwner {
        _requireExists(domainId);
        _domains[domainId].active = active;
        emit DomainActiveSet(domainId, active);
    }

    /// @notice Everything about a domain.
    /// @param domainId The domain.
    function domainOf(uint256 domainId) external view returns (Domain memory) {
        _requireExists(domainId);
        return _domains[domainId];
    }

    /// @inheritdoc IDomainRegistry
    function isActive(uint256 domainId) external view returns (bool) {
        return _domains[domainId].active;
    }

    /// @inheritdoc IDomainRegistry
    function reserveOf(uint256 domainId) external view returns (address) {
        return _domains[domainId].reserve;
    }

    function _set(
        uint256 domainId,
        string calldata name,
        string calldata uri,
        bytes32 validationHash,
        address reserve
    ) private {
        if (bytes(name).length == 0) revert NoName();
        _requireShort(name);
        _requireShort(uri);
        Domain storage domain = _domains[domainId];
        domain.reserve = reserve;
        domain.validationHash = validationHash;
        domain.name = name;
        domain.uri = uri;
        emit DomainSet(domainId, name, uri, validationHash, reserve);
    }

    function _requireExists(uint256 domainId) private view {
        if (domainId == 0 || domainId > domainCount) revert NoSuchDomain(domainId);
    }

    function _requireShort(string calldata text) private pure {
        if (bytes(text).length > MAX_TEXT) revert TextTooLong(bytes(text).length, MAX_TEXT);
    }
}
