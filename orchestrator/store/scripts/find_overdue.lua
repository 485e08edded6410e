-- Returns the nodes whose deadlines have passed. It reads no other nodes, so nodes that send heartbeats cause no work.
-- While the orchestrator or Redis was down, no heartbeats could arrive. So after a pause of the loop, or a jump of the
-- clock, an amnesty begins, during which no node is overdue. At its beginning, deadlines that are too far ahead are
-- brought forward, because they were set before the clock was set back.
if not holds('liveness', lease) then return {} end
local f = redis.call('HMGET', P .. 'liveness', 'tick', 'amnesty')
local last, amnesty_until = tonumber(f[1] or '0'), tonumber(f[2] or '0')
if now_ms - last > gap_ms or now_ms < last then
  amnesty_until = now_ms + amnesty_ms
  local late = redis.call('ZRANGEBYSCORE', P .. 'deadlines', now_ms + furthest_ms, '+inf')
  for _, address in ipairs(late) do redis.call('ZADD', P .. 'deadlines', now_ms + furthest_ms, address) end
end
redis.call('HSET', P .. 'liveness', 'tick', now_ms, 'amnesty', amnesty_until)
if now_ms < amnesty_until then return {} end
return redis.call('ZRANGEBYSCORE', P .. 'deadlines', '-inf', now_ms, 'LIMIT', 0, limit)
