-- Writes what became of a slot, and counts its groups under something else. 1: written, 0: somebody changed it since it
-- was read, -1: the lease of the loop was lost.
-- ARGV: loop, lease, slot, revision read ('' for a new one), counted as, due ('' for never), whether it is accused of
-- forgery ('1' or '0'), then fields and values; a new slot's fields are all of them
local loop, lease, id, revision, counted, due = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local accused = ARGV[7] == '1'
if not holds(loop, lease) then return -1 end
local slot = P .. 'run:slot:' .. id
if (redis.call('HGET', slot, 'rev') or '') ~= revision then return 0 end
local was = redis.call('HMGET', slot, 'counted', 'sha256')
local before, former = was[1] or '', was[2]
for i = 8, #ARGV, 2 do redis.call('HSET', slot, ARGV[i], ARGV[i + 1]) end
redis.call('HSET', slot, 'counted', counted)
redis.call('HINCRBY', slot, 'rev', 1)
local f = redis.call('HMGET', slot, 'step', 'node', 'index', 'provider', 'groups', 'units', 'expiry', 'key', 'sha256',
  'state', 'ended')
local step, node, index, provider, groups, units = f[1], f[2], f[3], f[4], tonumber(f[5]), tonumber(f[6])

if revision == '' then
  redis.call('ZADD', P .. 'run:slots:' .. step, f[7], id)
  redis.call('ZADD', P .. 'run:steps', step, step)
  for _, list in ipairs({P .. 'run:node:' .. node, P .. 'run:provider:' .. (provider or '')}) do
    redis.call('LPUSH', list, id)
    redis.call('LTRIM', list, 0, 499)
  end
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
redis.call(accused and 'SADD' or 'SREM', P .. 'run:accused:' .. node, id)

-- Which files work names, so that no other file is kept; a reorganisation may have put another file in its place.
local files = P .. 'run:named'
if former and former ~= f[9] and redis.call('HGET', files, node .. ':' .. former) == id then
  redis.call('HDEL', files, node .. ':' .. former)
end
if f[9] then redis.call('HSET', files, node .. ':' .. f[9], id) end
if f[10] == 'undelivered' or f[10] == 'released' or f[10] == 'lapsed' then
  redis.call('ZADD', P .. 'run:discarded', f[11] or '0', id)
else
  redis.call('ZREM', P .. 'run:discarded', id)
end

-- Escrow and stake answer for a lease that was given up until it expires; for all else it is over.
local function live(what) return what == 'leased' or what == 'spare' end
local function open(what) return live(what) or what == 'returned' end
if before ~= counted then
  local counts = P .. 'run:step:' .. step
  if before ~= '' then redis.call('HINCRBY', counts, before, -groups) end
  if counted ~= '' then redis.call('HINCRBY', counts, counted, groups) end
  local change = (live(counted) and 1 or 0) - (live(before) and 1 or 0)
  if change ~= 0 then
    redis.call(change > 0 and 'SADD' or 'SREM', P .. 'run:live:' .. node, id)
    redis.call('HINCRBY', P .. 'run:held:' .. step, provider, change * groups)
  end
  change = (open(counted) and 1 or 0) - (open(before) and 1 or 0)
  if change ~= 0 then
    redis.call('HINCRBY', P .. 'run:open', '*', string.format('%.0f', change * units))
    redis.call('HINCRBY', P .. 'run:open', '#', change)
    redis.call('HINCRBY', P .. 'run:open', provider, string.format('%.0f', change * units))
  end
end
return 1
