-- Stores or refreshes a node's record, unless its origin or its pool has reached the maximum number of nodes.
local node_key, pool_key, expiry_key = P .. 'node:' .. address, P .. 'pool:' .. pool, P .. 'expiry'
local origin_key = P .. 'origin:' .. origin
local spare_ms = 3600000

prune(now_ms, 32)

redis.call('ZREMRANGEBYSCORE', origin_key, '-inf', now_ms)
if not redis.call('ZSCORE', origin_key, address) and redis.call('ZCARD', origin_key) >= most_per_origin then
  local first = redis.call('ZRANGE', origin_key, 0, 0, 'WITHSCORES')
  return reply{refused = 'origin', wait_s = math.ceil((tonumber(first[2]) - now_ms) / 1000)}
end

local old = redis.call('HMGET', node_key, 'pool', 'expires')
local old_pool = old[1]
if old_pool and tonumber(old[2]) <= now_ms then
  redis.call('DEL', node_key)
  redis.call('ZREM', P .. 'pool:' .. old_pool, address)
  old_pool = false
end
if old_pool ~= pool then
  if redis.call('ZCARD', pool_key) >= most_per_pool then return reply{refused = 'pool'} end
  if old_pool then redis.call('ZREM', P .. 'pool:' .. old_pool, address) end
  redis.call('DEL', P .. 'invites:' .. address)
end

local expires = now_ms + life_ms
redis.call('HSETNX', node_key, 'first', now_ms)
redis.call('HSET', node_key, 'pool', pool, 'registration', registration, 'ip', ip, 'last', now_ms,
  'expires', expires)
-- The expiry loop deletes records. Redis' own expiry deletes them if no instance of the service runs.
redis.call('PEXPIRE', node_key, life_ms + spare_ms)
redis.call('ZADD', pool_key, 0, address)
redis.call('ZADD', expiry_key, expires, address)
redis.call('ZADD', origin_key, expires, address)
redis.call('PEXPIRE', origin_key, life_ms + spare_ms)
return reply{first_seen_ms = redis.call('HGET', node_key, 'first')}
