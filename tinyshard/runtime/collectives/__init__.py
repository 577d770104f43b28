"""The collectives between worker processes: through shared memory, gloo or NCCL."""
