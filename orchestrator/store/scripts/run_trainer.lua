-- Makes a trainer the run's only one, or lets it stay it; answers its lease, or '' if another one has the run.
-- A trainer that begins anew (without a lease) gets a new one at once, and what runs under its old one is fenced. Asked
-- twice by the same start, it is the same lease: the first answer may have been lost, and a lost answer fences nobody.
-- ARGV: holder, lease ('' if it begins), lifetime in ms, start ('' if it does not say)
local holder, lease, lifetime, start = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key, whose = P .. 'lease:trainer', P .. 'lease:trainer:start'
local current = redis.call('GET', key)
if current and (current == lease or (start ~= '' and redis.call('GET', whose) == start)) then
  redis.call('PEXPIRE', key, lifetime)
  redis.call('PEXPIRE', whose, lifetime)
  return current
end
if current and (lease ~= '' or string.sub(current, 1, #holder + 1) ~= holder .. '#') then return '' end
local value = holder .. '#' .. redis.call('INCR', P .. 'fence:trainer')
redis.call('SET', key, value, 'PX', lifetime)
redis.call('SET', whose, start, 'PX', lifetime)
return value
