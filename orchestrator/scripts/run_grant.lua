-- Leases the next slot of a node, if the run, the step, the node and the money allow it. Answers 'ok' or 'again' with the
-- slot's id, or why not.
-- ARGV: node, provider, step, groups asked, request, now, expiry in s, version, digest, async level, default demand,
-- most groups of a slot, most live slots of a node, beacon, block of the beacon, how long the request is remembered in ms
local node, provider, step, asked, request, now = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local expiry, version, digest = ARGV[7], ARGV[8], ARGV[9]
local asynchrony, usual, per_slot, most_live = tonumber(ARGV[10]), ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13])
local beacon, beacon_block, remembered = ARGV[14], ARGV[15], ARGV[16]

local asked_before = P .. 'run:request:' .. node .. ':' .. request
local known = redis.call('GET', asked_before)
if known then return {'again', known} end

local s = redis.call('HMGET', P .. 'run:state', 'ready', 'floor', 'version', 'digest', 'units', 'escrow', 'base')
if s[1] ~= '1' then return {'not-ready'} end
if s[3] ~= version or s[4] ~= digest then return {'moved'} end
local n = redis.call('HMGET', P .. 'node:' .. node, 'state', 'member')
if n[1] ~= 'healthy' or n[2] ~= '1' then return {'not-active', n[1] or 'unknown'} end
if tonumber(step) < math.max(tonumber(s[2] or '0'), tonumber(version)) then return {'closed'} end
if tonumber(step) > tonumber(version) + asynchrony then return {'ahead'} end

local function need_of(which)
  local c = redis.call('HMGET', P .. 'run:step:' .. which, 'demand', 'leased', 'pending', 'accepted')
  return tonumber(c[1] or usual) - tonumber(c[2] or '0') - tonumber(c[3] or '0') - tonumber(c[4] or '0')
end
-- The smallest step that wants rollouts and no other: who could choose the step could choose among seeds.
for before = math.max(tonumber(s[2] or '0'), tonumber(version)), tonumber(step) - 1 do
  if need_of(string.format('%.0f', before)) > 0 then return {'earlier', string.format('%.0f', before)} end
end
local counts, need = P .. 'run:step:' .. step, need_of(step)
if need <= 0 then return {'enough'} end
local live = P .. 'run:live:' .. node
if redis.call('SCARD', live) >= most_live then return {'busy'} end

local per_group = tonumber(s[5])
local open = redis.call('HMGET', P .. 'run:open', '*', provider)
local payable = math.floor((tonumber(s[6] or '0') - tonumber(open[1] or '0')) / per_group)
if payable < 1 then return {'escrow'} end
local stake = redis.call('HGET', P .. 'run:stakes', provider)
if not stake then return {'stake-unknown'} end
local covered = math.floor((tonumber(stake) - tonumber(open[2] or '0')) / per_group)
if covered < 1 then return {'stake'} end

local groups = math.min(asked, need, per_slot, payable, covered)
local units = string.format('%.0f', groups * per_group)
local indices = P .. 'run:next:' .. step
local index = redis.call('HGET', indices, node) or s[7] or '0'
if tonumber(index) >= 4294967295 then return {'full'} end
redis.call('HSET', indices, node, string.format('%.0f', tonumber(index) + 1))

local id = step .. ':' .. node .. ':' .. index
redis.call('HSET', P .. 'run:slot:' .. id, 'rev', 1, 'step', step, 'node', node, 'index', index, 'provider', provider,
  'version', version, 'digest', digest, 'groups', groups, 'units', units, 'expiry', expiry, 'granted', now,
  'beacon', beacon, 'beacon_block', beacon_block, 'state', 'leased', 'counted', 'leased')
redis.call('SET', asked_before, id, 'PX', remembered)
redis.call('ZADD', P .. 'run:slots:' .. step, expiry, id)
redis.call('ZADD', P .. 'run:steps', step, step)
-- Somebody looks at it a while before its end, when there is still time to carry its work again.
redis.call('ZADD', P .. 'run:due', string.format('%.0f', (tonumber(expiry) - 60) * 1000), id)
redis.call('LPUSH', P .. 'run:node:' .. node, id)
redis.call('LTRIM', P .. 'run:node:' .. node, 0, 499)
redis.call('SADD', live, id)
redis.call('HINCRBY', counts, 'leased', groups)
redis.call('HINCRBY', P .. 'run:open', '*', units)
redis.call('HINCRBY', P .. 'run:open', provider, units)
return {'ok', id}
