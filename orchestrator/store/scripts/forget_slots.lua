-- Deletes up to `limit` slots of an old step; returns the number of slots left. The caller repeats the call until none
-- is left, so that no single call blocks Redis for long.
if not holds(loop, lease) then return 0 end
local slots = P .. 'run:slots:' .. step
for _, id in ipairs(redis.call('ZRANGE', slots, 0, limit - 1)) do
  local slot = P .. 'run:slot:' .. id
  local f = redis.call('HMGET', slot, 'key', 'node', 'counted', 'units', 'provider', 'sha256')
  if f[1] then redis.call('HDEL', P .. 'run:keys', f[1]) end
  if f[3] == 'leased' or f[3] == 'spare' or f[3] == 'returned' then
    redis.call('HINCRBY', P .. 'run:open', '*', '-' .. f[4])
    redis.call('HINCRBY', P .. 'run:open', '#', -1)
    redis.call('HINCRBY', P .. 'run:open', f[5], '-' .. f[4])
  end
  if f[2] then
    redis.call('SREM', P .. 'run:live:' .. f[2], id)
    redis.call('SREM', P .. 'run:accused:' .. f[2], id)
    redis.call('LREM', P .. 'run:node:' .. f[2], 1, id)
    redis.call('LREM', P .. 'run:provider:' .. (f[5] or ''), 1, id)
    if f[6] and redis.call('HGET', P .. 'run:named', f[2] .. ':' .. f[6]) == id then
      redis.call('HDEL', P .. 'run:named', f[2] .. ':' .. f[6])
    end
  end
  for _, audit in ipairs(redis.call('SMEMBERS', P .. 'run:audits:' .. id)) do
    if redis.call('HGET', P .. 'run:audits', audit) == id then redis.call('HDEL', P .. 'run:audits', audit) end
  end
  redis.call('ZREM', P .. 'run:due', id)
  redis.call('ZREM', P .. 'run:discarded', id)
  redis.call('DEL', slot, P .. 'run:uploads:' .. id, P .. 'run:audits:' .. id)
end
redis.call('ZREMRANGEBYRANK', slots, 0, limit - 1)
local left = redis.call('ZCARD', slots)
if left == 0 then
  redis.call('DEL', P .. 'run:step:' .. step, P .. 'run:next:' .. step, P .. 'run:held:' .. step)
  redis.call('ZREM', P .. 'run:steps', step)
end
return left
