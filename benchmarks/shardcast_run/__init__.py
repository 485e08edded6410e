"""The sides that `benchmarks.shardcast` compares, each as processes of its own."""
