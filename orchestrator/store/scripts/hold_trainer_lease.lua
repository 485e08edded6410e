-- Acquires or renews the trainer's lease; returns its value, or '' if another trainer holds it.
-- A trainer that restarts (sends no lease) gets a new value at once, which fences off its former process. A repeated
-- request with the same `start` gets the same value: the first answer may have been lost, and a new value would fence
-- off the caller itself.
local key, start_key = P .. 'lease:trainer', P .. 'lease:trainer:start'
local current = redis.call('GET', key)
if current and (current == lease or (start ~= '' and redis.call('GET', start_key) == start)) then
  redis.call('PEXPIRE', key, lifetime_ms)
  redis.call('PEXPIRE', start_key, lifetime_ms)
  return current
end
if current and (lease ~= '' or string.sub(current, 1, #holder + 1) ~= holder .. '#') then return '' end
local value = holder .. '#' .. redis.call('INCR', P .. 'fence:trainer')
redis.call('SET', key, value, 'PX', lifetime_ms)
redis.call('SET', start_key, start, 'PX', lifetime_ms)
return value
