-- Leases the next slot of a step to a node, if the run, the step, the node, the escrow and the stake allow it.

local request_key = P .. 'run:request:' .. node .. ':' .. request
local known = redis.call('GET', request_key)
if known then return reply{outcome = 'again', slot = known} end

local s = redis.call('HMGET', P .. 'run:state', 'ready', 'floor', 'version', 'digest', 'units', 'escrow', 'base',
  'unit_cost', 'lease_cost')
if s[1] ~= '1' then return reply{outcome = 'not-ready'} end
if s[3] ~= int(version) or s[4] ~= digest then return reply{outcome = 'moved'} end
local n = redis.call('HMGET', P .. 'node:' .. node, 'state', 'member')
if n[1] ~= 'healthy' or n[2] ~= '1' then return reply{outcome = 'not-active', slot = n[1] or 'unknown'} end
if redis.call('SCARD', P .. 'run:accused:' .. node) > 0 then return reply{outcome = 'accused'} end
local first = math.max(tonumber(s[2] or '0'), version)
if step < first then return reply{outcome = 'closed'} end
if step > (serving and first or version) + async_level then return reply{outcome = 'ahead'} end

-- Returns the groups that a step still needs, like `StepCount.need` but negative if the step has too many; and the
-- step's demand.
local function need_of(number)
  local c = redis.call('HMGET', P .. 'run:step:' .. number, 'demand', 'leased', 'pending', 'accepted')
  local demand = tonumber(c[1] or default_demand)
  local covered = tonumber(c[2] or '0') + tonumber(c[3] or '0') + tonumber(c[4] or '0')
  return demand - covered, demand
end
-- Only slots of the smallest step that needs rollouts are leased. The step is part of the seed, so a node that may
-- choose the step could choose the best of several seeds.
for before = first, step - 1 do
  if need_of(int(before)) > 0 then return reply{outcome = 'earlier', slot = int(before)} end
end
local counts, need, demand = P .. 'run:step:' .. step, need_of(step)
if need <= 0 then return reply{outcome = 'enough'} end
local live = P .. 'run:live:' .. node
if redis.call('SCARD', live) >= most_live then return reply{outcome = 'busy'} end

local per_group = tonumber(s[5])
local open = redis.call('HMGET', P .. 'run:open', '*', provider, '#')
local unit_cost, lease_cost = tonumber(s[8] or '1'), tonumber(s[9] or '0')
local left = tonumber(s[6] or '0') - tonumber(open[1] or '0') * unit_cost - (tonumber(open[3] or '0') + 1) * lease_cost
if left < per_group * unit_cost then return reply{outcome = 'escrow'} end
local payable = unit_cost == 0 and groups_per_slot or math.floor(left / (per_group * unit_cost))
local stake = redis.call('HGET', P .. 'run:stakes', provider)
if not stake then return reply{outcome = 'stake-unknown'} end
local covered = math.floor((tonumber(stake) - tonumber(open[2] or '0')) / per_group)
if covered < 1 then return reply{outcome = 'stake'} end

-- While other providers ask for slots, a provider may hold only 1/holders of a step, so that it can't delay the step.
local askers, held = P .. 'run:askers', P .. 'run:held:' .. step
redis.call('ZREMRANGEBYSCORE', askers, '-inf', now_ms - asking_ms)
redis.call('ZADD', askers, now_ms, provider)
local share = need
if redis.call('ZCARD', askers) > 1 then
  share = math.max(1, math.ceil(demand / holders)) - tonumber(redis.call('HGET', held, provider) or '0')
  if share < 1 then return reply{outcome = 'share'} end
end

local groups = math.min(groups, need, groups_per_slot, payable, covered, share, math.floor(most_units / per_group))
local units = groups * per_group
local counted = waits_until_ms > now_ms and 'leased' or 'spare'
local indices = P .. 'run:next:' .. step
local index = redis.call('HGET', indices, node) or s[7] or '0'
-- A lease holds the index as a 32-bit integer.
if tonumber(index) >= 4294967295 then return reply{outcome = 'full'} end
redis.call('HSET', indices, node, tonumber(index) + 1)

local id = step .. ':' .. node .. ':' .. index
redis.call('HSET', P .. 'run:slot:' .. id, 'rev', 1, 'step', step, 'node', node, 'index', index, 'provider', provider,
  'version', version, 'digest', digest, 'groups', groups, 'units', units, 'expiry', expiry_s,
  'granted', now_ms, 'waits_until', waits_until_ms, 'beacon', beacon, 'beacon_block',
  beacon_block, 'state', 'leased', 'counted', counted)
if serving then redis.call('HSET', P .. 'run:slot:' .. id, 'excused', '1') end
redis.call('SET', request_key, id, 'PX', remembered_ms)
redis.call('ZADD', P .. 'run:slots:' .. step, expiry_s, id)
redis.call('ZADD', P .. 'run:steps', step, step)
redis.call('ZADD', P .. 'run:due', waits_until_ms, id)
-- The lists keep the 500 newest slots, more than the delivery rules of nodes and providers consider.
for _, list in ipairs({P .. 'run:node:' .. node, P .. 'run:provider:' .. provider}) do
  redis.call('LPUSH', list, id)
  redis.call('LTRIM', list, 0, 499)
end
redis.call('SADD', live, id)
redis.call('HINCRBY', counts, counted, groups)
redis.call('HINCRBY', held, provider, groups)
redis.call('HINCRBY', P .. 'run:open', '*', units)
redis.call('HINCRBY', P .. 'run:open', '#', 1)
redis.call('HINCRBY', P .. 'run:open', provider, units)
return reply{outcome = 'ok', slot = id}
