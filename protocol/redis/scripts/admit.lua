-- Checks nonce and rate of one request.
local outcome, wait_us = admit_request{address = address, nonce = nonce, attempt = attempt, now_us = now_us,
  nonce_kept_ms = nonce_kept_ms, interval_us = interval_us, tolerance_us = tolerance_us}
return reply{outcome = outcome, wait_us = wait_us}
