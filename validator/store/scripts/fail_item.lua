-- Puts an item back that its holder could not judge: other members may take it immediately, the holder after a pause.
-- Parks the item instead if no present member is left that may judge it and has not given it up; if two members failed
-- at it in half of `tries` each; or if `tries` holders in a row died while they held it.
local item = P .. 'item:' .. id
local held = redis.call('HMGET', item, 'token', 'state', 'lost')
if held[1] ~= token or held[2] ~= 'leased' then return 'lost' end
local now = clock()
redis.call('ZREM', P .. 'queue:leased', id)
redis.call('HDEL', item, 'lost')  -- the holder survived the item
redis.call('HINCRBY', item, 'tries:' .. member, 1)
if counted then
  redis.call('HINCRBY', item, 'attempts', 1)
  if gives_up ~= 'requirement' then redis.call('HINCRBY', item, 'fails:' .. member, 1) end
end
if gives_up == 'attempts-used' then redis.call('HSET', item, 'fails:' .. member, tries) end
local barred, fails, out, given = gives_up == 'not-allowed', history_of(item)
if barred then
  redis.call('HSET', item, 'barred:' .. member, 1)
  out[member] = true
elseif gives_up ~= '' or (fails[member] or 0) >= tries then
  redis.call('HSET', item, 'gave:' .. member, 1)
  out[member], given = true, true
end
redis.call('HSET', item, 'again', 1)
if code == 'file-absent' then redis.call('HSET', item, 'absent', 1) end  -- never removed: all rows of the file are recomputed
-- If another member gave the item up, that member's error stays stored for the operator: that this member may not judge
-- the work (`barred`) is no information about the item.
if not (barred and given) then
  redis.call('HSET', item, 'code', code, 'why', why, 'hint', hint)
end
local failed, others = 0, others_left(member, out, silence_ms)
for _, count in pairs(fails) do
  if 2 * count >= tries then failed = failed + 1 end
end
local may_park = counted or gives_up ~= ''  -- an attempt that an outage ended never parks the item
if may_park and (failed > 1 or tonumber(held[3] or 0) >= tries or (given and out[member] and not others)) then
  redis.call('HSET', item, 'state', 'parked')
  redis.call('HDEL', item, 'staged', 'resolution')
  redis.call('ZADD', P .. 'queue:parked', now, id)
  return 'parked'
end
local at = now + pause_ms
if others and not for_all then
  redis.call('HSET', item, 'after:' .. member, at)
  at = now
end
redis.call('HSET', item, 'state', 'waiting')
redis.call('ZADD', P .. 'queue:waiting', at, id)
return 'again'
