-- Cancels a request; replies the state in which it was.
local state = redis.call('HGET', request_of(id), 'state') or ''
if only_waiting and state ~= 'waiting' then return state end
cancel(id)
return state
