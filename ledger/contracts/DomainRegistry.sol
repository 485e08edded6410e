// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Ownable, Ownable2Step} from "@openzeppelin/contracts/access/Ownable2Step.sol";
import {IDomainRegistry} from "./interfaces/IDomainRegistry.sol";

/// @title Registry of domains
/// @notice A domain is a field of work with validation rules; each pool belongs to one. The governor creates domains,
/// and sets their rules and the recipient of their penalties.
contract DomainRegistry is IDomainRegistry, Ownable2Step {
    /// @notice The maximum length of a name or URI, in bytes.
    uint256 public constant MAX_TEXT = 512;

    /// @notice Number of domains; their ids are 1 to this number.
    uint256 public domainCount;

    mapping(uint256 domainId => Domain) private _domains;

    /// @notice A domain was created or updated.
    event DomainSet(
        uint256 indexed domainId, string name, string uri, bytes32 validationHash, address indexed reserve
    );
    /// @notice A domain was opened or closed for new pools and members.
    event DomainActiveSet(uint256 indexed domainId, bool active);

    /// @notice There is no such domain.
    error NoSuchDomain(uint256 domainId);
    /// @notice The name of a domain must not be empty.
    error NoName();
    /// @notice The text has `length` bytes; at most `limit` are allowed.
    error TextTooLong(uint256 length, uint256 limit);

    /// @notice Creates an empty registry.
    /// @param governor The account that may create and update domains.
    constructor(address governor) Ownable(governor) {}

    /// @notice Creates a domain. Only the governor may call this.
    /// @param name The name.
    /// @param uri URI of the description.
    /// @param validationHash Hash of the domain's validation parameters.
    /// @param reserve The recipient of penalties; zero burns them.
    /// @return domainId The id of the domain; the first domain has id 1.
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

    /// @notice Updates a domain. Only the governor may call this.
    /// @param domainId The domain.
    /// @param name The name.
    /// @param uri URI of the description.
    /// @param validationHash Hash of the domain's validation parameters.
    /// @param reserve The recipient of penalties; zero burns them.
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

    /// @notice Opens or closes a domain for new pools and members. Existing pools and members are not affected. Only
    /// the governor may call this.
    /// @param domainId The domain.
    /// @param active Whether it takes new pools and members.
    function setDomainActive(uint256 domainId, bool active) external onlyOwner {
        _requireExists(domainId);
        _domains[domainId].active = active;
        emit DomainActiveSet(domainId, active);
    }

    /// @notice Returns a domain; reverts if there is no domain with this id.
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
