-- Deletes some of the oldest ended assignments with their logs; returns the number of deleted ones.
local before = redis.call('ZCARD', P .. 'assignments:ended')
forget_assignments(now_ms, kept_ms, most_ended)
return before - redis.call('ZCARD', P .. 'assignments:ended')
