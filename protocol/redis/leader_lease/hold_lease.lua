-- Acquires, renews or releases the leader lease of a loop. Returns the lease's value; '' after a release, or while
-- another holder has the lease.
-- Each new value contains a higher fencing token, so the value of a lost lease never becomes valid again. A holder that
-- does not know its value, because the answer was lost, gets a new value.
local key = P .. 'lease:' .. loop
local current = redis.call('GET', key)
if lifetime_ms == 0 then
  if current == held then redis.call('DEL', key) end
  return ''
end
if current and current == held then
  redis.call('PEXPIRE', key, lifetime_ms)
  return held
end
if current and string.sub(current, 1, #holder + 1) ~= holder .. '#' then return '' end
local value = holder .. '#' .. redis.call('INCR', P .. 'fence:' .. loop)
redis.call('SET', key, value, 'PX', lifetime_ms)
return value
