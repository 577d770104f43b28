"""The notebook's kernel: it plans, dispatches, waits and tells of errors, and never computes on shards."""
