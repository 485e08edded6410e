"""The parts of OpenAI-compatible services that `muster serve` and gateways share."""
