-- Queues a command for a node. The answers to the node's heartbeats contain it until the node acknowledges it.
if redis.call('EXISTS', P .. 'node:' .. address) == 0 then return 'unknown-node' end
local commands = P .. 'commands:' .. address
if redis.call('HEXISTS', commands, id) == 0 and redis.call('HLEN', commands) >= most_waiting then return 'too-many' end
redis.call('HSET', commands, id, command)
redis.call('EXPIRE', commands, 604800) -- a week, so that commands of nodes that never return don't stay in Redis
return 'left'
