"""One run on several processes: the first one has the run, the others hold their shares of the policy and follow it."""
