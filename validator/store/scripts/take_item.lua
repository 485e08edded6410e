-- Leases the item with the earliest deadline that this member may take.
-- First moves items to the ready queues `ready` and `again`: items whose lease has expired, and items whose delay has
-- passed. An expired lease counts as a failure of its holder, because the item may have killed the holder's process.
local now = clock()
local waiting, ready, leased = P .. 'queue:waiting', P .. 'queue:ready', P .. 'queue:leased'
-- `again` has ready items that were leased before. This member may have to wait for some of them, so the queue is
-- searched, `DEPTH` items at a time.
local again, DEPTH = P .. 'queue:again', 32
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
  if fails >= tries then redis.call('HSET', item, 'gave:' .. dead, 1) end
  if others_left(dead, {}, silence_ms) then  -- other members get the item first, even if the holder starts again
    local pause = math.min(longest_pause_ms, first_pause_ms * 2 ^ math.min(fails, 20))
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
  local found = redis.call('HMGET', P .. 'item:' .. id, 'after:' .. member, 'lost')
  if found[1] and tonumber(found[1]) > now then return false end
  return suspects or not found[2]
end
local function lease(queue, id)
  redis.call('ZREM', queue, id)
  redis.call('ZADD', leased, now + lease_ms, id)
  local item = P .. 'item:' .. id
  redis.call('HSET', item, 'state', 'leased', 'token', token, 'holder', member)
  return reply{id = id, now_ms = now, fields = redis.call('HGETALL', item)}
end
local fresh = redis.call('ZRANGE', ready, 0, 0, 'WITHSCORES')
-- Searches `DEPTH` items of `again` from a position on. Returns the first one that the member may take (or nil), and true
-- if no later part needs a search: it has no items, or their deadlines are later than that of the first fresh item.
local function look(from)
  local listed = redis.call('ZRANGE', again, from, from + DEPTH - 1, 'WITHSCORES')
  for i = 1, #listed, 2 do
    if fresh[2] and tonumber(fresh[2]) < tonumber(listed[i + 1]) then return nil, true end
    if takes(listed[i]) then return listed[i], false end
  end
  return nil, #listed < 2 * DEPTH
end
local found, ended = look(0)
-- If the first `DEPTH` items have none to take, searches `DEPTH` later items. Their position moves on with each call of
-- this member, so that every item is reached after some calls.
if not found and not ended then
  local mark = P .. 'look:' .. member
  local from = tonumber(redis.call('GET', mark) or DEPTH)
  found, ended = look(from)
  redis.call('SET', mark, (found and from) or (ended and DEPTH) or from + DEPTH, 'PX', silence_ms)
end
if found then return lease(again, found) end
if fresh[1] then return lease(ready, fresh[1]) end
return reply{}
