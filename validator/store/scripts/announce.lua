-- Announces a member and its condition; deletes members that were silent for `kept_ms`.
-- For `start_counts_ms` after its first start, a starting member is listed in `well`, so that other members leave work
-- to it. Further starts without a passed self-test do not extend this time.
local now = clock()
local function forget(name)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. name, '-inf', now - kept_ms)) do
    redis.call('ZREM', P .. name, member)
    redis.call('DEL', P .. 'member:' .. member)
  end
end
forget('members')
redis.call('ZREMRANGEBYSCORE', P .. 'well', '-inf', now - kept_ms)
redis.call('ZADD', P .. 'members', now, member)
local stored, counts = P .. 'member:' .. member, state == 'well'
if counts then redis.call('HDEL', stored, 'starting') end
if state == 'starting' then
  redis.call('HSETNX', stored, 'starting', now)
  counts = now - redis.call('HGET', stored, 'starting') < start_counts_ms
end
if counts then redis.call('ZADD', P .. 'well', now, member) else redis.call('ZREM', P .. 'well', member) end
redis.call('HSET', stored, 'validator', validator, 'place', place, 'state', state, 'since', now - since_ms,
  'code', code, 'why', why, 'hint', hint, 'tests', tests, 'counts', counts and 1 or 0,
  'numerics', table.concat(numerics, ' '))
return 1
