-- Stores or refreshes a node's record, unless a newer statement of the node is stored, or its origin, its pool or the
-- peer that passed it on has reached its limit.
local node_key, pool_key, expiry_key = P .. 'node:' .. address, P .. 'pool:' .. pool, P .. 'expiry'
local origin_key = P .. 'origin:' .. origin
local spare_ms = 3600000
local own_bytes = 500 -- approximate size of a record without its registration

prune(now_ms, 32)

local seen = direct and now_ms or math.min(now_ms, signed_ms)
local expires = seen + life_ms
local held = newest(address, now_ms)
if not replaces(held, signed_ms, signature, false, direct) then
  return reply{refused = held.left and 'left' or 'older'}
end
if expires <= now_ms then return reply{refused = 'older'} end

if direct then
  redis.call('ZREMRANGEBYSCORE', origin_key, '-inf', now_ms)
  if not redis.call('ZSCORE', origin_key, address) and redis.call('ZCARD', origin_key) >= most_per_origin then
    local first = redis.call('ZRANGE', origin_key, 0, 0, 'WITHSCORES')
    return reply{refused = 'origin', wait_s = math.ceil((tonumber(first[2]) - now_ms) / 1000)}
  end
end

local old = redis.call('HMGET', node_key, 'pool', 'expires')
local old_pool = old[1]
if old_pool and tonumber(old[2]) <= now_ms then
  redis.call('DEL', node_key)
  redis.call('ZREM', P .. 'pool:' .. old_pool, address)
  old_pool = false
end
if old_pool ~= pool and redis.call('ZCARD', pool_key) >= most_per_pool then return reply{refused = 'pool'} end
if direct then
  uncount_federated(address)
elseif not count_federated(address, source, #registration + own_bytes, most_federated, most_federated_bytes) then
  return reply{refused = 'federated'}
end
if old_pool ~= pool then
  if old_pool then redis.call('ZREM', P .. 'pool:' .. old_pool, address) end
  redis.call('DEL', P .. 'invites:' .. address)
end

redis.call('HSETNX', node_key, 'first', int(seen))
redis.call('HSET', node_key, 'pool', pool, 'registration', registration, 'last', int(seen), 'expires', int(expires),
  'signed', int(signed_ms), 'signed_at', int(seen), 'audience', audience, 'nonce', nonce, 'signature', signature)
if direct then redis.call('HSET', node_key, 'ip', ip) else redis.call('HSETNX', node_key, 'ip', '') end
-- The expiry loop deletes records. Redis' own expiry deletes them if no instance of the service runs.
redis.call('PEXPIRE', node_key, life_ms + spare_ms)
redis.call('ZADD', pool_key, 0, address)
redis.call('ZADD', expiry_key, expires, address)
redis.call('DEL', P .. 'left:' .. address)
redis.call('ZREM', P .. 'left', address)
if signature ~= '' then
  redis.call('ZADD', P .. 'signed', 0, address)
else
  redis.call('ZREM', P .. 'signed', address)
end
if direct then
  redis.call('ZADD', origin_key, expires, address)
  redis.call('PEXPIRE', origin_key, life_ms + spare_ms)
end
return reply{first_seen_ms = redis.call('HGET', node_key, 'first')}
