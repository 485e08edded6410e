-- Writes what became of a slot, and counts its groups under something else. 1: written, 0: somebody changed it since it
-- was read, -1: the lease of the loop was lost.
-- ARGV: loop, lease, slot, revision read ('' for a new one), counted as, due ('' for never), then fields and values;
-- a new slot's fields are all of them
local loop, lease, id, revision, counted, due = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if not holds(loop, lease) then return -1 end
local slot = P .. 'run:slot:' .. id
if (redis.call('HGET', slot, 'rev') or '') ~= revision then return 0 end
local before = redis.call('HGET', slot, 'counted') or ''
for i = 7, #ARGV, 2 do redis.call('HSET', slot, ARGV[i], ARGV[i + 1]) end
redis.call('HSET', slot, 'counted', counted)
redis.call('HINCRBY', slot, 'rev', 1)
local f = redis.call('HMGET', slot, 'step', 'node', 'index', 'provider', 'groups', 'units', 'expiry', 'key')
local step, node, index, provider, groups, units = f[1], f[2], f[3], f[4], tonumber(f[5]), tonumber(f[6])

if revision == '' then
  redis.call('ZADD', P .. 'run:slots:' .. step, f[7], id)
  redis.call('ZADD', P .. 'run:steps', step, step)
  redis.call('LPUSH', P .. 'run:node:' .. node, id)
  redis.call('LTRIM', P .. 'run:node:' .. node, 0, 499)
  -- It was leased in an earlier life of Redis, which leased more than what was handed in: the node's next index lies
  -- beyond all of those, in another block of 1024, as the first index of a life does.
  local indices, following = P .. 'run:next:' .. step, (math.floor(tonumber(index) / 1024) + 1) * 1024
  local known = redis.call('HGET', indices, node)
  if not known or tonumber(known) < following then
    redis.call('HSET', indices, node, string.format('%.0f', following))
  end
end
if f[8] then redis.call('HSET', P .. 'run:keys', f[8], id) end
if due == '' then redis.call('ZREM', P .. 'run:due', id) else redis.call('ZADD', P .. 'run:due', due, id) end

if before ~= counted then
  local counts = P .. 'run:step:' .. step
  if before ~= '' then redis.call('HINCRBY', counts, before, -groups) end
  if counted ~= '' then redis.call('HINCRBY', counts, counted, groups) end
  local change = 0
  if before == 'leased' then
    change = -units
    redis.call('SREM', P .. 'run:live:' .. node, id)
  elseif counted == 'leased' then
    change = units
    redis.call('SADD', P .. 'run:live:' .. node, id)
  end
  if change ~= 0 then
    redis.call('HINCRBY', P .. 'run:open', '*', string.format('%.0f', change))
    redis.call('HINCRBY', P .. 'run:open', provider, string.format('%.0f', change))
  end
end
return 1
