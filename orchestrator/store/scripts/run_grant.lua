-- Leases the next slot of a node, if the run, the step, the node and the money allow it. Answers 'ok' or 'again' with the
-- slot's id, or why not.
-- ARGV: one JSON object, `GrantRequest` in orchestrator/store/runs.py.
local a = cjson.decode(ARGV[1])

-- A whole number as text; Lua writes large ones with an exponent.
local function int(number) return string.format('%.0f', number) end
local step, node, provider = int(a.step), a.node, a.provider

local asked_before = P .. 'run:request:' .. node .. ':' .. a.request
local known = redis.call('GET', asked_before)
if known then return {'again', known} end

local s = redis.call('HMGET', P .. 'run:state', 'ready', 'floor', 'version', 'digest', 'units', 'escrow', 'base',
  'unit_cost', 'lease_cost')
if s[1] ~= '1' then return {'not-ready'} end
if s[3] ~= int(a.version) or s[4] ~= a.digest then return {'moved'} end
local n = redis.call('HMGET', P .. 'node:' .. node, 'state', 'member')
if n[1] ~= 'healthy' or n[2] ~= '1' then return {'not-active', n[1] or 'unknown'} end
if redis.call('SCARD', P .. 'run:accused:' .. node) > 0 then return {'accused'} end
local first = math.max(tonumber(s[2] or '0'), a.version)
if a.step < first then return {'closed'} end
if a.step > a.version + a.async_level then return {'ahead'} end

-- The same formula as `StepCount.need`, below zero if there is more than was asked for; and the demand.
local function need_of(which)
  local c = redis.call('HMGET', P .. 'run:step:' .. which, 'demand', 'leased', 'pending', 'accepted')
  local demand = tonumber(c[1] or a.default_demand)
  local there = tonumber(c[2] or '0') + tonumber(c[3] or '0') + tonumber(c[4] or '0')
  return demand - there, demand
end
-- The smallest step that wants rollouts and no other: who could choose the step could choose among seeds.
for before = first, a.step - 1 do
  if need_of(int(before)) > 0 then return {'earlier', int(before)} end
end
local counts, need, demand = P .. 'run:step:' .. step, need_of(step)
if need <= 0 then return {'enough'} end
local live = P .. 'run:live:' .. node
if redis.call('SCARD', live) >= a.most_live then return {'busy'} end

local per_group = tonumber(s[5])
local open = redis.call('HMGET', P .. 'run:open', '*', provider, '#')
local unit_cost, lease_cost = tonumber(s[8] or '1'), tonumber(s[9] or '0')
local left = tonumber(s[6] or '0') - tonumber(open[1] or '0') * unit_cost - (tonumber(open[3] or '0') + 1) * lease_cost
if left < per_group * unit_cost then return {'escrow'} end
local payable = unit_cost == 0 and a.groups_per_slot or math.floor(left / (per_group * unit_cost))
local stake = redis.call('HGET', P .. 'run:stakes', provider)
if not stake then return {'stake-unknown'} end
local covered = math.floor((tonumber(stake) - tonumber(open[2] or '0')) / per_group)
if covered < 1 then return {'stake'} end

-- A provider that is slow must not hold a step alone while others could do it: at most a third for each.
local askers, held = P .. 'run:askers', P .. 'run:held:' .. step
redis.call('ZREMRANGEBYSCORE', askers, '-inf', int(a.now_ms - a.asking_ms))
redis.call('ZADD', askers, int(a.now_ms), provider)
local share = need
if redis.call('ZCARD', askers) > 1 then
  share = math.max(1, math.ceil(demand / a.holders)) - tonumber(redis.call('HGET', held, provider) or '0')
  if share < 1 then return {'share'} end
end

local groups = math.min(a.groups, need, a.groups_per_slot, payable, covered, share, math.floor(a.most_units / per_group))
local units = int(groups * per_group)
local counted = a.waits_until_ms > a.now_ms and 'leased' or 'spare'
local indices = P .. 'run:next:' .. step
local index = redis.call('HGET', indices, node) or s[7] or '0'
if tonumber(index) >= 4294967295 then return {'full'} end
redis.call('HSET', indices, node, int(tonumber(index) + 1))

local id = step .. ':' .. node .. ':' .. index
redis.call('HSET', P .. 'run:slot:' .. id, 'rev', 1, 'step', step, 'node', node, 'index', index, 'provider', provider,
  'version', int(a.version), 'digest', a.digest, 'groups', groups, 'units', units, 'expiry', int(a.expiry_s),
  'granted', int(a.now_ms), 'waits_until', int(a.waits_until_ms), 'beacon', a.beacon, 'beacon_block',
  int(a.beacon_block), 'state', 'leased', 'counted', counted)
redis.call('SET', asked_before, id, 'PX', int(a.remembered_ms))
redis.call('ZADD', P .. 'run:slots:' .. step, int(a.expiry_s), id)
redis.call('ZADD', P .. 'run:steps', step, step)
redis.call('ZADD', P .. 'run:due', int(a.waits_until_ms), id)
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
return {'ok', id}
