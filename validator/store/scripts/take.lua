-- Leases the work whose deadline is next, and which this member may try; answers {id, now (ms), fields...} or nothing.
-- What a dead holder left comes back first, and counts as a failure of that member: it may be what killed it.
-- ARGV: length of the lease (ms), token (random, so that none from before a loss of Redis equals it), member,
--       suspects (0: nothing that a holder died over), tries, silence (ms), first pause (ms), longest pause (ms)
local P, me, now = KEYS[1], ARGV[3], clock()
local waiting, ready, leased = P .. 'queue:waiting', P .. 'queue:ready', P .. 'queue:leased'
local again = P .. 'queue:again'  -- ready too, but somebody had it before, and may have to wait: looked through
local DEEPEST = 32  -- at the front, and further down
local function make_ready(id)
  local found = redis.call('HMGET', P .. 'item:' .. id, 'deadline', 'again')
  if not found[1] then return end
  redis.call('HSET', P .. 'item:' .. id, 'state', 'ready')
  redis.call('ZADD', found[2] and again or ready, found[1], id)
end
local function bury(id)
  local item = P .. 'item:' .. id
  local dead = redis.call('HGET', item, 'holder')
  redis.call('HINCRBY', item, 'attempts', 1)
  redis.call('HINCRBY', item, 'lost', 1)
  redis.call('HSET', item, 'code', '', 'why', '', 'hint', '', 'again', 1)
  if not dead then return end
  local fails = redis.call('HINCRBY', item, 'fails:' .. dead, 1)
  if fails >= tonumber(ARGV[5]) then redis.call('HSET', item, 'gave:' .. dead, 1) end
  if others_left(P, dead, {}, ARGV[6]) then  -- others first, if it comes back
    local pause = math.min(tonumber(ARGV[8]), ARGV[7] * 2 ^ math.min(fails, 20))
    redis.call('HSET', item, 'after:' .. dead, now + math.floor(pause))
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, 64)) do
  redis.call('ZREM', leased, id)
  if redis.call('EXISTS', P .. 'item:' .. id) == 1 then bury(id) end
  make_ready(id)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'LIMIT', 0, 256)) do
  redis.call('ZREM', waiting, id)
  make_ready(id)
end
local function takes(id)
  local found = redis.call('HMGET', P .. 'item:' .. id, 'after:' .. me, 'lost')
  if found[1] and tonumber(found[1]) > now then return false end
  return ARGV[4] == '1' or not found[2]
end
local function lease(queue, id)
  redis.call('ZREM', queue, id)
  redis.call('ZADD', leased, now + ARGV[1], id)
  local item = P .. 'item:' .. id
  redis.call('HSET', item, 'state', 'leased', 'token', ARGV[2], 'holder', me)
  return {id, now, unpack(redis.call('HGETALL', item))}
end
local fresh = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')
-- The first that this member may take of a part of what is looked through; and whether there is nothing more to look at.
local function look(from)
  local listed = redis.call('ZRANGE', again, from, from + DEEPEST - 1, 'WITHSCORES')
  for i = 1, #listed, 2 do
    if fresh[2] and tonumber(fresh[2]) < tonumber(listed[i + 1]) then return nil, true end
    if takes(listed[i]) then return listed[i], false end
  end
  return nil, #listed < 2 * DEEPEST
end
local found, ended = look(0)
if not found and not ended then  -- further down it looks at another part each time, so that nothing there is forgotten
  local mark = P .. 'look:' .. me
  local from = tonumber(redis.call('GET', mark) or DEEPEST)
  found, ended = look(from)
  redis.call('SET', mark, (found and from) or (ended and DEEPEST) or from + DEEPEST, 'PX', ARGV[6])
end
if found then return lease(again, found) end
if fresh[1] then return lease(ready, fresh[1]) end
return {}
