-- Leaves a command for a node; it rides on heartbeat answers until acknowledged. 1: left, 0: too many wait, -1: no node.
-- ARGV: address, id, command (JSON), most
local address, id, command, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if redis.call('EXISTS', P .. 'node:' .. address) == 0 then return -1 end
local commands = P .. 'commands:' .. address
if redis.call('HEXISTS', commands, id) == 0 and redis.call('HLEN', commands) >= most then return 0 end
redis.call('HSET', commands, id, command)
redis.call('EXPIRE', commands, 604800)
return 1
