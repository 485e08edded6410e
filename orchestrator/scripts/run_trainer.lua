-- Makes a trainer the run's only one, or lets it stay it; answers its lease, or '' if another one has the run.
-- A trainer that begins anew (without a lease) gets a new one at once, and what runs under its old one is fenced.
-- ARGV: holder, lease ('' if it begins), lifetime in ms
local holder, lease, lifetime = ARGV[1], ARGV[2], ARGV[3]
local key = P .. 'lease:trainer'
local current = redis.call('GET', key)
if current and current == lease then
  redis.call('PEXPIRE', key, lifetime)
  return current
end
if current and (lease ~= '' or string.sub(current, 1, #holder + 1) ~= holder .. '#') then return '' end
local value = holder .. '#' .. redis.call('INCR', P .. 'fence:trainer')
redis.call('SET', key, value, 'PX', lifetime)
return value
