-- Deletes at most `most` expired records. Used by other scripts and by the expiry loop.
local function prune(expiry_key, prefix, now, most)
  local gone = redis.call('ZRANGEBYSCORE', expiry_key, '-inf', now, 'LIMIT', 0, most)
  for _, address in ipairs(gone) do
    local node_key = prefix .. 'node:' .. address
    local pool = redis.call('HGET', node_key, 'pool')
    if pool then redis.call('ZREM', prefix .. 'pool:' .. pool, address) end
    redis.call('DEL', node_key, prefix .. 'invites:' .. address)
    redis.call('ZREM', expiry_key, address)
  end
  return #gone
end
