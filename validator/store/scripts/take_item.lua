-- Leases the item with the next deadline that this member may try.
-- Items of dead holders come back first, and count as a failure of the holder: the item may have killed it.
local now = clock()
local waiting, ready, leased = P .. 'queue:waiting', P .. 'queue:ready', P .. 'queue:leased'
-- Also ready, but tried before, so that this member may have to wait: searched, `DEPTH` items at a time.
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
  if others_left(dead, {}, silence_ms) then  -- if the holder comes back, others go first
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
-- Returns the first item from this position on that the member may take, and whether the search has ended.
local function look(from)
  local listed = redis.call('ZRANGE', again, from, from + DEPTH - 1, 'WITHSCORES')
  for i = 1, #listed, 2 do
    if fresh[2] and tonumber(fresh[2]) < tonumber(listed[i + 1]) then return nil, true end
    if takes(listed[i]) then return listed[i], false end
  end
  return nil, #listed < 2 * DEPTH
end
local found, ended = look(0)
if not found and not ended then  -- further down each call searches the next part, so that every item has its turn
  local mark = P .. 'look:' .. member
  local from = tonumber(redis.call('GET', mark) or DEPTH)
  found, ended = look(from)
  redis.call('SET', mark, (found and from) or (ended and DEPTH) or from + DEPTH, 'PX', silence_ms)
end
if found then return lease(again, found) end
if fresh[1] then return lease(ready, fresh[1]) end
return reply{}
