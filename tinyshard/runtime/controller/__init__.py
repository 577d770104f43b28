"""The controller, in the notebook's kernel: it plans, dispatches, waits and raises errors; never computes on shards."""
