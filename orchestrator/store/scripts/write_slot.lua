-- Writes the state of a slot, and moves its groups to another counter of the step. For a new slot, `fields` has all
-- fields. Returns 0 if the slot changed after it was read, and -1 if the caller lost the leader lease.
if not holds(loop, lease) then return -1 end
local stored = P .. 'run:slot:' .. slot
if (redis.call('HGET', stored, 'rev') or '') ~= revision then return 0 end
local previous = redis.call('HMGET', stored, 'counted', 'sha256')
local before, former = previous[1] or '', previous[2]
set_fields(stored, fields)
redis.call('HSET', stored, 'counted', counted)
redis.call('HINCRBY', stored, 'rev', 1)
local f = redis.call('HMGET', stored, 'step', 'node', 'index', 'provider', 'groups', 'units', 'expiry', 'key', 'sha256',
  'state', 'ended')
local step, node, index, provider, groups, units = f[1], f[2], f[3], f[4], tonumber(f[5]), tonumber(f[6])

if revision == '' then
  redis.call('ZADD', P .. 'run:slots:' .. step, f[7], slot)
  redis.call('ZADD', P .. 'run:steps', step, step)
  for _, list in ipairs({P .. 'run:node:' .. node, P .. 'run:provider:' .. (provider or '')}) do
    redis.call('LPUSH', list, slot)
    redis.call('LTRIM', list, 0, 499)
  end
  -- The slot was leased before Redis lost its data, and other leases of that time are not known. The node's next index
  -- must be above theirs, so it is the next multiple of 1024. `base`, the first index after a loss, is also such a
  -- multiple.
  local indices, following = P .. 'run:next:' .. step, (math.floor(tonumber(index) / 1024) + 1) * 1024
  local known = redis.call('HGET', indices, node)
  if not known or tonumber(known) < following then
    redis.call('HSET', indices, node, following)
  end
end
if f[8] then redis.call('HSET', P .. 'run:keys', f[8], slot) end
if due_ms then redis.call('ZADD', P .. 'run:due', due_ms, slot) else redis.call('ZREM', P .. 'run:due', slot) end
redis.call(accused and 'SADD' or 'SREM', P .. 'run:accused:' .. node, slot)

-- `named` has the files of submitted work; the sweeper deletes the other files of nodes. After a reorg this work may
-- refer to another file, so the entry of the former file is removed.
local files = P .. 'run:named'
if former and former ~= f[9] and redis.call('HGET', files, node .. ':' .. former) == slot then
  redis.call('HDEL', files, node .. ':' .. former)
end
if f[9] then redis.call('HSET', files, node .. ':' .. f[9], slot) end
if f[10] == 'undelivered' or f[10] == 'released' or f[10] == 'lapsed' then
  redis.call('ZADD', P .. 'run:discarded', f[11] or '0', slot)
else
  redis.call('ZREM', P .. 'run:discarded', slot)
end

-- A slot in the counter 'returned' was released: it does not count as live, but reserves escrow and stake until its
-- lease expires.
local function live(counter) return counter == 'leased' or counter == 'spare' end
local function open(counter) return live(counter) or counter == 'returned' end
if before ~= counted then
  local counts = P .. 'run:step:' .. step
  if before ~= '' then redis.call('HINCRBY', counts, before, -groups) end
  if counted ~= '' then redis.call('HINCRBY', counts, counted, groups) end
  local change = (live(counted) and 1 or 0) - (live(before) and 1 or 0)
  if change ~= 0 then
    redis.call(change > 0 and 'SADD' or 'SREM', P .. 'run:live:' .. node, slot)
    redis.call('HINCRBY', P .. 'run:held:' .. step, provider, change * groups)
  end
  change = (open(counted) and 1 or 0) - (open(before) and 1 or 0)
  if change ~= 0 then
    redis.call('HINCRBY', P .. 'run:open', '*', change * units)
    redis.call('HINCRBY', P .. 'run:open', '#', change)
    redis.call('HINCRBY', P .. 'run:open', provider, change * units)
  end
end
return 1
