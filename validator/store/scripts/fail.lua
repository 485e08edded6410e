-- Puts work back that its holder could not judge: for others at once, for the holder after a pause. Parks it when nobody
-- is left here who has not given it up and may judge it, or two members have failed at it for half of the tries each, or
-- as many holders in a row as one has tries have died over it.
-- Answers 'again', 'parked', or 'lost' if the lease was.
-- ARGV: id, token, member, pause (ms), whose ('everybodys': nobody may take it before the pause is over), counted (0|1),
--       gives up (''|'lacks'|'barred'|'ends'), tries, silence (ms), code, why, hint
local P, id, me, pause = KEYS[1], ARGV[1], ARGV[3], tonumber(ARGV[4])
local item = P .. 'item:' .. id
local held = redis.call('HMGET', item, 'token', 'state', 'lost')
if held[1] ~= ARGV[2] or held[2] ~= 'leased' then return 'lost' end
local now, most = clock(), tonumber(ARGV[8])
redis.call('ZREM', P .. 'queue:leased', id)
redis.call('HDEL', item, 'lost')  -- this holder lived to say what became of it
redis.call('HINCRBY', item, 'tries:' .. me, 1)
if ARGV[6] == '1' then
  redis.call('HINCRBY', item, 'attempts', 1)
  if ARGV[7] ~= 'lacks' then redis.call('HINCRBY', item, 'fails:' .. me, 1) end
end
if ARGV[7] == 'ends' then redis.call('HSET', item, 'fails:' .. me, most) end
local barred, fails, out, given = ARGV[7] == 'barred', told_of(item)
if barred then
  redis.call('HSET', item, 'barred:' .. me, 1)
  out[me] = true
elseif ARGV[7] ~= '' or (fails[me] or 0) >= most then
  redis.call('HSET', item, 'gave:' .. me, 1)
  out[me], given = true, true
end
redis.call('HSET', item, 'again', 1)
if ARGV[10] == 'file-absent' then redis.call('HSET', item, 'absent', 1) end  -- stays: its rows are audited in full
if not (barred and given) then  -- else a person reads what it was given up for
  redis.call('HSET', item, 'code', ARGV[10], 'why', ARGV[11], 'hint', ARGV[12])
end
local failed, others = 0, others_left(P, me, out, ARGV[9])
for _, count in pairs(fails) do
  if 2 * count >= most then failed = failed + 1 end
end
local says_so = ARGV[6] == '1' or ARGV[7] ~= ''  -- an outage parks nothing, whatever was before
if says_so and (failed > 1 or tonumber(held[3] or 0) >= most or (given and out[me] and not others)) then
  redis.call('HSET', item, 'state', 'parked')
  redis.call('HDEL', item, 'staged', 'resolution')
  redis.call('ZADD', P .. 'queue:parked', now, id)
  return 'parked'
end
local at = now + pause
if others and ARGV[5] ~= 'everybodys' then
  redis.call('HSET', item, 'after:' .. me, at)
  at = now
end
redis.call('HSET', item, 'state', 'waiting')
redis.call('ZADD', P .. 'queue:waiting', at, id)
return 'again'
