-- Which nodes' deadlines passed. Looks at nothing else: idle nodes cost nothing.
-- After a pause of the loop itself (we were down, or Redis, or the clock jumped) nodes could not have been heard, so
-- nobody is overdue until an amnesty is over; deadlines that lie too far ahead are from a clock that was set back.
-- ARGV: lease, now, gap that is a pause (ms), amnesty (ms), latest sensible deadline (ms from now), most
-- Answers {lease held, in amnesty, addresses}.
local lease, now, gap, amnesty = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local furthest, most = tonumber(ARGV[5]), ARGV[6]
if not holds('liveness', lease) then return {0, 0, {}} end
local f = redis.call('HMGET', P .. 'liveness', 'tick', 'amnesty')
local last, pardoned = tonumber(f[1] or '0'), tonumber(f[2] or '0')
if now - last > gap or now < last then
  pardoned = now + amnesty
  local late = redis.call('ZRANGEBYSCORE', P .. 'deadlines', now + furthest, '+inf')
  for _, address in ipairs(late) do redis.call('ZADD', P .. 'deadlines', now + furthest, address) end
end
redis.call('HSET', P .. 'liveness', 'tick', now, 'amnesty', pardoned)
if now < pardoned then return {1, 1, {}} end
return {1, 0, redis.call('ZRANGEBYSCORE', P .. 'deadlines', '-inf', now, 'LIMIT', 0, most)}
