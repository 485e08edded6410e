-- One heartbeat in one round trip: admission, liveness deadline, what the node says, and what it is to do.
-- Constant work, whatever the size of the pool. KEYS: prefix, nonce, rate.
-- Constants: KEPT, RATE_INTERVAL, TOLERANCE (see the admission), SHORTEST, TARGET_RATE, UNHEALTHY_AFTER, DEAD_AFTER.
local now_us, flags, address, stretch, version, metrics = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local id, generation, fingerprint, ip = ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local now = math.floor(tonumber(now_us) / 1000)
local admit, draining = string.sub(flags, 1, 1), string.sub(flags, 2, 2)

if admit == '1' then
  local answer = muster_admit(KEYS[2], KEYS[3], now_us, KEPT, RATE_INTERVAL, TOLERANCE)
  if answer[1] ~= 0 then return answer end
end

local node = P .. 'node:' .. address
local f = redis.call('HMGET', node, 'state', 'drain', 'aid', 'agen', 'ahead', 'aref', 'afp', 'astate', 'reason',
  'failure')
local serving = (f[1] == 'healthy' and draining == '0') or (f[1] == 'draining' and (draining == '1' or f[2] ~= 'node'))
-- Everything else is a decision, and decisions are not made here.
if not serving then return {0, 1, f[1] or ''} end

local nodes = redis.call('ZCARD', P .. 'deadlines')
local interval = math.floor(math.max(SHORTEST, nodes * 1000 / TARGET_RATE) * stretch)
local patience = f[1] == 'healthy' and UNHEALTHY_AFTER or DEAD_AFTER
redis.call('ZADD', P .. 'deadlines', now + math.floor(interval * patience), address)
redis.call('HSET', node, 'seen', now, 'interval', interval, 'version', version, 'metrics', metrics, 'ip', ip)

-- A report counts only for what the node is to run now: id and generation.
if f[3] and id == f[3] and generation == f[4] and fingerprint ~= f[7] then
  local assignment = P .. 'assignment:' .. id
  local report = cjson.decode(fingerprint)
  local state, detail = report[1], report[5]
  redis.call('HSET', node, 'afp', fingerprint, 'astate', state)
  redis.call('HSET', assignment, 'state', state, 'restarts', report[2], 'exit_code', report[3], 'started', report[4],
    'detail', detail)
  if state ~= f[8] then
    local task = redis.call('HGET', assignment, 'task') or ''
    count(task, f[8] or 'pending', -1)
    count(task, state, 1)
    changed(address)
    emit(now, 'assignment.' .. state, detail, address, address, task)
  end
end

local commands = P .. 'commands:' .. address
for i = 11, #ARGV do
  if redis.call('HDEL', commands, ARGV[i]) == 1 then
    emit(now, 'command.acknowledged', ARGV[i], address, address, '')
  end
end
return {0, 0, f[1], f[3] or '', f[4] or '', f[5] or '', f[6] or '', f[9] or '', interval,
  redis.call('HVALS', commands), f[10] or ''}
