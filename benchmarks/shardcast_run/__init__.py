"""The systems that `benchmarks.shardcast` compares, each in separate processes."""
