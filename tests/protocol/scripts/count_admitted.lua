local outcome, wait_us = admit_request{address = address, nonce = nonce, now_us = now_us,
  nonce_kept_ms = nonce_kept_ms, interval_us = interval_us, tolerance_us = tolerance_us}
if outcome == 'admitted' then redis.call('INCR', P .. 'beats') end
return reply{outcome = outcome, wait_us = wait_us}
