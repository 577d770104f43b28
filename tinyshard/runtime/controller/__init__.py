"""The notebook's kernel: it plans, dispatches, waits and raises errors, and never computes on shards."""
