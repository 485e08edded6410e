-- Writes the new secret of a webhook; returns 0 if it has another secret than the one that was read, or was deleted.
local stored = P .. 'webhook:' .. webhook
if redis.call('HGET', stored, 'sealed') ~= before then return 0 end
set_fields(stored, fields)
return 1
