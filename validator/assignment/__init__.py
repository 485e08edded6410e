"""Assignment of work to validators: liveness, rendezvous order and eligibility."""
