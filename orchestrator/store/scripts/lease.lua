-- Takes or renews the lease of a loop; answers the lease's value, or '' if somebody else has it.
-- ARGV: loop, holder, value held so far ('' if none), lifetime in ms
local loop, holder, held, lifetime = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key = P .. 'lease:' .. loop
local current = redis.call('GET', key)
if current and current == held then
  redis.call('PEXPIRE', key, lifetime)
  return held
end
if current then return '' end
local value = holder .. '#' .. redis.call('INCR', P .. 'fence:' .. loop)
redis.call('SET', key, value, 'PX', lifetime)
return value
