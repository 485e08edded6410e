-- Appends an event of the pool for a ledger event that was not announced before, or whose announced event a reorg removed.
-- Returns 0 if there is nothing to announce, and -1 if the caller lost the leader lease.
--
-- Announced ledger events are remembered by block, and the oldest blocks are forgotten together. Events of forgotten
-- blocks, and of blocks before the first one that was ever read here, are never announced.
if not holds(loop, lease) then return -1 end
local seen, oldest = P .. 'run:announced', P .. 'run:announced-after'
local floor = tonumber(redis.call('GET', oldest) or '')
if not floor then
  floor = block - 1
  redis.call('SET', oldest, floor)
end
if reverted then
  if redis.call('ZREM', seen, identity) == 0 then return 0 end
else
  if block <= floor or redis.call('ZADD', seen, 'NX', block, identity) == 0 then return 0 end
  local excess = redis.call('ZCARD', seen) - most_kept
  if excess > 0 then
    local last = redis.call('ZRANGE', seen, excess - 1, excess - 1, 'WITHSCORES')[2]
    redis.call('ZREMRANGEBYSCORE', seen, '-inf', last)
    redis.call('SET', oldest, last)
  end
end
if not quiet then emit(now_ms, kind, detail, actor, node, '') end
return 1
