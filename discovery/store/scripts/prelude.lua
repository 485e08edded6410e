-- Begins every script of the discovery service. Deletes at most `limit` expired records; returns their number.
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
