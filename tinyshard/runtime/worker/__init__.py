"""A device: one process that keeps shards by number and runs Programs by number."""
