-- KEYS: node, its pool, expiry, its origin. Answers {0, first seen}, {1, seconds} origin full, {2, 0} pool full.
local node_key, pool_key, expiry_key, origin_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local prefix, address, pool, registration, ip = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now, life = tonumber(ARGV[6]), tonumber(ARGV[7])
local per_origin, room = tonumber(ARGV[8]), tonumber(ARGV[9])
local spare_ms = 3600000

prune(expiry_key, prefix, ARGV[6], 32)

redis.call('ZREMRANGEBYSCORE', origin_key, '-inf', ARGV[6])
if not redis.call('ZSCORE', origin_key, address) and redis.call('ZCARD', origin_key) >= per_origin then
  local first = redis.call('ZRANGE', origin_key, 0, 0, 'WITHSCORES')
  return {1, math.ceil((tonumber(first[2]) - now) / 1000)}
end

local old = redis.call('HMGET', node_key, 'pool', 'expires')
local old_pool = old[1]
if old_pool and tonumber(old[2]) <= now then
  redis.call('DEL', node_key)
  redis.call('ZREM', prefix .. 'pool:' .. old_pool, address)
  old_pool = false
end
if old_pool ~= pool then
  if redis.call('ZCARD', pool_key) >= room then return {2, 0} end
  if old_pool then redis.call('ZREM', prefix .. 'pool:' .. old_pool, address) end
  redis.call('DEL', prefix .. 'invites:' .. address)
end

local expires = string.format('%.0f', now + life)
redis.call('HSETNX', node_key, 'first', ARGV[6])
redis.call('HSET', node_key, 'pool', pool, 'registration', registration, 'ip', ip, 'last', ARGV[6], 'expires', expires)
-- The loop takes records away by our clock; Redis's own expiry is for the case that no instance runs.
redis.call('PEXPIRE', node_key, life + spare_ms)
redis.call('ZADD', pool_key, 0, address)
redis.call('ZADD', expiry_key, expires, address)
redis.call('ZADD', origin_key, expires, address)
redis.call('PEXPIRE', origin_key, life + spare_ms)
return {0, tonumber(redis.call('HGET', node_key, 'first'))}
