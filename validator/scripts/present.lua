-- A member of this Redis says that it is here, and how it is; what was silent for too long is forgotten.
-- ARGV: member, validator, place, state (well|starting|unwell), for how long (ms), kept (ms), code, why, hint, tests
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
if ARGV[4] == 'unwell' then redis.call('ZREM', P .. 'well', me) else redis.call('ZADD', P .. 'well', now, me) end
redis.call('HSET', P .. 'member:' .. me, 'validator', ARGV[2], 'place', ARGV[3], 'state', ARGV[4],
  'since', now - ARGV[5], 'code', ARGV[7], 'why', ARGV[8], 'hint', ARGV[9], 'tests', ARGV[10])
return now
