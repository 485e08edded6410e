"""SHARDCAST: broadcast of checkpoints from an origin over untrusted relays to clients.

Use it by `from shardcast import Origin, Relay, Client`. Each of these three classes is an async context manager, and
the docstring of the class's module has an example.
"""

from shardcast.client import Client
from shardcast.download.download import Fetched
from shardcast.freshness import AnnouncedVersion, Announcements
from shardcast.manifest.manifest import VersionKey
from shardcast.origin import Origin
from shardcast.publish.publication import Published
from shardcast.relay import Relay

__all__ = ["AnnouncedVersion", "Announcements", "Client", "Fetched", "Origin", "Published", "Relay", "VersionKey"]
