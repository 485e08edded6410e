"""Makes entries in Redis older, because Redis' own time can't be moved."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

AGE = """
local P, by = KEYS[1], tonumber(ARGV[1])
if by == 0 then return 0 end
for _, name in ipairs({'queue:waiting', 'queue:leased', 'queue:parked', 'members', 'well'}) do
  for _, id in ipairs(redis.call('ZRANGE', P .. name, 0, -1)) do redis.call('ZINCRBY', P .. name, -by, id) end
end
local function age(key, pattern)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.match(field, pattern) then redis.call('HINCRBY', key, field, -by) end
  end
end
for _, key in ipairs(redis.call('KEYS', '*:item:*')) do age(key, '^after:') age(key, '^seen$') end
for _, key in ipairs(redis.call('KEYS', '*lease:*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, left - by) end
end
for _, key in ipairs(redis.call('KEYS', '*:member:*')) do age(key, '^since$') age(key, '^starting$') end
return 1
"""


async def age(redis: Redis, prefix: str, by: timedelta) -> None:
    """Makes everything of a pool's validators older."""
    client: Any = redis
    await client.eval(AGE, 1, prefix, int(by.total_seconds() * 1000))
