-- Appends an event of the pool for a ledger event that was not announced before, or whose announced event a reorg removed.
-- Returns 0 if there is nothing to announce, and -1 if the caller lost the leader lease.
--
-- It also counts the event in the accounts of the pool, the provider and the node (store/accounts.py), as often as it is
-- announced, and takes the count back if a reorg removed the event.
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
if provider == '' and work ~= '' then
  local slot = redis.call('HGET', P .. 'run:keys', work)
  provider = slot and redis.call('HGET', P .. 'run:slot:' .. slot, 'provider') or ''
  if provider == '' then provider = redis.call('HGET', P .. 'node:' .. node, 'provider') or '' end
end
local sign = reverted and '-' or ''
local owners = {'pool'}
if node ~= '' then owners[#owners + 1] = 'node:' .. node end
if provider ~= '' then owners[#owners + 1] = 'provider:' .. provider end
for _, owner in ipairs(owners) do
  local account = P .. 'run:account:' .. owner
  redis.call('HSETNX', account, 'since', now_ms)
  redis.call('HINCRBY', account, counter, sign .. '1')
  -- A sum beyond 64 bits, which no honest ledger reaches, is not added, so that it can't stop the loop.
  if amount ~= '0' then redis.pcall('HINCRBY', account, counter .. ':amount', sign .. amount) end
end
if counter == 'payout.earned' then
  local days = {P .. 'run:earned:pool'}
  if provider ~= '' then
    days[2] = P .. 'run:earned:' .. provider
    redis.call('ZINCRBY', P .. 'run:ranking', sign .. amount, provider)
  end
  for _, days_key in ipairs(days) do
    redis.pcall('HINCRBY', days_key, day, sign .. amount)
    if redis.call('HLEN', days_key) > MOST_DAYS then
      local kept = {}
      for _, each in ipairs(redis.call('HKEYS', days_key)) do kept[#kept + 1] = tonumber(each) end
      table.sort(kept)
      for i = 1, #kept - MOST_DAYS do redis.call('HDEL', days_key, kept[i]) end
    end
  end
end
if not quiet then emit(now_ms, kind, detail, actor, node, '') end
return 1
