-- This file is prepended to every script of the discovery service.
-- Deletes up to `limit` expired records with their invites; returns the number of deleted records.
local function prune(now, limit)
  local expired = redis.call('ZRANGEBYSCORE', P .. 'expiry', '-inf', now, 'LIMIT', 0, limit)
  for _, address in ipairs(expired) do
    local node = P .. 'node:' .. address
    local pool = redis.call('HGET', node, 'pool')
    if pool then redis.call('ZREM', P .. 'pool:' .. pool, address) end
    redis.call('DEL', node, P .. 'invites:' .. address)
    redis.call('ZREM', P .. 'expiry', address)
  end
  return #expired
end
