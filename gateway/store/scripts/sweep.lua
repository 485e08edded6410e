-- Handles what nobody reports: lost sessions and attempts, replicas that died, leases and verifications that ended.
local report = {lost = 0, stalled = 0, orphaned = 0, ended = 0, unverified = 0}
local function due(set, by) return redis.call('ZRANGEBYSCORE', P .. set, '-inf', by, 'LIMIT', 0, at_once) end

for _, id in ipairs(due('alive', now_ms)) do
  redis.call('ZREM', P .. 'alive', id)
  list_room(id)
  for _, request in ipairs(redis.call('SMEMBERS', P .. 'work:' .. id)) do
    report.lost = report.lost + 1
    try_again(request, now_ms, false, last)
  end
end
for _, id in ipairs(due('progress', now_ms)) do
  report.stalled = report.stalled + 1
  redis.call('ZREM', P .. 'progress', id)
  local node = redis.call('HGET', request_of(id), 'node')
  if node then count_stall(node) end
  try_again(id, now_ms, false, last)
end
for _, id in ipairs(due('sessions', now_ms)) do
  report.ended = report.ended + 1
  redis.call('ZREM', P .. 'sessions', id)
  end_session(id, now_ms, last)
end
for _, id in ipairs(due('verify-ends', now_ms)) do
  redis.call('ZREM', P .. 'verify-ends', id)
  local v = redis.call('HMGET', P .. 'verification:' .. id, 'digest', 'mode')
  if v[1] then
    redis.call('ZREM', P .. 'verify:' .. v[1], id)
    redis.call('DEL', P .. 'verification:' .. id)
    if v[2] == 'before' then
      report.unverified = report.unverified + 1
      settle(id, 'unverified', 0, unverified)
    end
  end
end
-- A replica's heartbeat is a key that expires by Redis' clock, because a wrong clock of one replica must not end others.
for _, replica in ipairs(redis.call('SRANDMEMBER', P .. 'replicas', at_once)) do
  if redis.call('EXISTS', P .. 'replica:' .. replica) == 0 then
    for _, id in ipairs(redis.call('SRANDMEMBER', P .. 'requests:' .. replica, at_once)) do
      report.orphaned = report.orphaned + 1
      cancel(id)
      redis.call('SREM', P .. 'requests:' .. replica, id)
    end
    if redis.call('SCARD', P .. 'requests:' .. replica) == 0 then redis.call('SREM', P .. 'replicas', replica) end
  end
end
return reply(report)
