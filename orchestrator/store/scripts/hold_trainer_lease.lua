-- Acquires or renews the trainer lease; returns its value, or '' if another trainer holds it.
-- A trainer that restarts sends no lease. It gets a new value at once, with which requests of its former process are
-- refused. A repeated request with the same `start` gets the same value, because the first answer may have been lost or
-- may still arrive, and a new value would make it invalid.
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
