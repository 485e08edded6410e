"""Pure decisions about nodes, slots, steps and leases: no I/O, no clock."""
