-- Handles a heartbeat in one round trip: checks it with the replay guard, sets the node's next deadline, stores its
-- report, and returns its assignment and commands. The work does not grow with the number of nodes.
-- The caller sets these constants: nonce_kept_ms, interval_us and tolerance_us of the replay guard; shortest_ms,
-- target_rate, unhealthy_after and dead_after of `HeartbeatInterval`.
if not admitted then
  local outcome, wait_us = admit_request{address = address, nonce = nonce, now_us = now_us,
    nonce_kept_ms = nonce_kept_ms, interval_us = interval_us, tolerance_us = tolerance_us}
  if outcome ~= 'admitted' then return reply{admission = outcome, wait_us = wait_us} end
end

local now = math.floor(now_us / 1000)
local node = P .. 'node:' .. address
local f = redis.call('HMGET', node, 'state', 'drain', 'aid', 'agen', 'ahead', 'aref', 'afp', 'astate', 'reason',
  'failure')
local state, assignment, generation = f[1], f[3], f[4]
-- The heartbeat of a node in any other state needs a state transition first, which `HeartbeatService` decides.
if not ((state == 'healthy' and not draining) or (state == 'draining' and (draining or f[2] ~= 'node'))) then
  return reply{admission = 'admitted', state = state}
end

local nodes = redis.call('ZCARD', P .. 'deadlines')
local interval = math.floor(math.max(shortest_ms, nodes * 1000 / target_rate) * stretch)
local missable = state == 'healthy' and unhealthy_after or dead_after
redis.call('ZADD', P .. 'deadlines', now + math.floor(interval * missable), address)
redis.call('HSET', node, 'seen', now, 'interval', interval, 'version', version, 'metrics', metrics, 'ip', ip)

-- A report is stored only if it is about the node's present assignment in its present generation, and if it changed.
if assignment and reported_assignment == assignment and reported_generation == tonumber(generation)
  and report ~= f[7] then
  local stored = P .. 'assignment:' .. assignment
  local values = cjson.decode(report)
  local task_state, detail = values[1], values[5]
  redis.call('HSET', node, 'afp', report, 'astate', task_state)
  redis.call('HSET', stored, 'state', task_state, 'restarts', values[2], 'exit_code', values[3], 'started', values[4],
    'detail', detail)
  touch(node)
  if task_state ~= f[8] then
    local task = redis.call('HGET', stored, 'task') or ''
    count(task, f[8] or 'pending', -1)
    count(task, task_state, 1)
    changed(address)
    emit(now, 'assignment.' .. task_state, detail, address, address, task, assignment)
  end
end

local commands = P .. 'commands:' .. address
for _, id in ipairs(acknowledged) do
  if redis.call('HDEL', commands, id) == 1 then emit(now, 'command.acknowledged', id, address, address, '') end
end
return reply{admission = 'admitted', served = true, state = state, assignment_id = assignment, head = f[5],
  reference = f[6], reason = f[9], failure = f[10], interval_ms = interval, commands = redis.call('HVALS', commands)}
