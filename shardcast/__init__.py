"""SHARDCAST: checkpoints in at an origin, out at clients, over relays that nobody has to trust.

`from shardcast import Origin, Relay, Client`: each is an async context manager, and says in its module how it is used.
"""

from shardcast.attempts import Fetched
from shardcast.client import Client
from shardcast.freshness import Announced, Announcements
from shardcast.manifest import VersionKey
from shardcast.origin import Origin
from shardcast.publication import Published
from shardcast.relay import Relay

__all__ = ["Announced", "Announcements", "Client", "Fetched", "Origin", "Published", "Relay", "VersionKey"]
