-- Changes the run's state, and one step's demand, if nobody did since they were read. 1: written, 0: not, -1: the lease
-- of the loop was lost.
-- ARGV: loop, lease ('' for a request), revision read, now, step ('' for none), demand, rounds, kind of event ('' for
-- none), its detail, actor, then fields and values; an empty value removes its field
local loop, lease, revision, now, step, demand, rounds = unpack(ARGV, 1, 7)
local kind, detail, actor = ARGV[8], ARGV[9], ARGV[10]
if not holds(loop, lease) then return -1 end
local state = P .. 'run:state'
if (redis.call('HGET', state, 'rev') or '') ~= revision then return 0 end
redis.call('HINCRBY', state, 'rev', 1)
for i = 11, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', state, ARGV[i])
  else
    redis.call('HSET', state, ARGV[i], ARGV[i + 1])
  end
end
if step ~= '' then
  redis.call('HSET', P .. 'run:step:' .. step, 'demand', demand, 'rounds', rounds)
  redis.call('ZADD', P .. 'run:steps', step, step)
end
if kind ~= '' then emit(now, kind, detail, actor, '', '') end
return 1
