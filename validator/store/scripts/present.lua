-- A member of this Redis says that it is here, and how it is; what was silent for too long is forgotten.
-- One that starts counts as well for a while; one that starts again and again and is never well, no longer than that.
-- ARGV: member, validator, place, state (well|starting|unwell), for how long (ms), kept (ms), code, why, hint, tests,
--       how long a start counts (ms)
local P, me, now = KEYS[1], ARGV[1], clock()
local function forget(name)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. name, '-inf', now - ARGV[6])) do
    redis.call('ZREM', P .. name, member)
    redis.call('DEL', P .. 'member:' .. member)
  end
end
forget('members')
redis.call('ZREMRANGEBYSCORE', P .. 'well', '-inf', now - ARGV[6])
redis.call('ZADD', P .. 'members', now, me)
local member, counts = P .. 'member:' .. me, ARGV[4] == 'well'
if counts then redis.call('HDEL', member, 'starting') end
if ARGV[4] == 'starting' then
  redis.call('HSETNX', member, 'starting', now)
  counts = now - redis.call('HGET', member, 'starting') < tonumber(ARGV[11])
end
if counts then redis.call('ZADD', P .. 'well', now, me) else redis.call('ZREM', P .. 'well', me) end
redis.call('HSET', member, 'validator', ARGV[2], 'place', ARGV[3], 'state', ARGV[4],
  'since', now - ARGV[5], 'code', ARGV[7], 'why', ARGV[8], 'hint', ARGV[9], 'tests', ARGV[10],
  'counts', counts and 1 or 0)
return now
