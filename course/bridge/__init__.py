"""The same training in the words of torch.distributed: what a learner takes to a cluster.

    setting          the model, its examples and the line of results that all of them share
    loop             the steps that the programs of torch.distributed train for
    by_hand          torch.distributed: each gradient is averaged by an all_reduce
    ddp              DistributedDataParallel
    fsdp             FSDP2: fully_shard
    tensor_parallel  DTensor: parallelize_module
    two_dims         tensor parallel in a node, fully_shard between nodes
    ours             all of them with tinyshard: a step, and layouts
    in_jax           the same in JAX, to read
    traffic          what a program of torch.distributed sends, counted while it runs
    launch           start one of the programs by torchrun, from a cell, and read its results
    alone            one process of a program, without the others: which collectives it calls, how much it holds

Each program runs on a cluster as it is: `torchrun --nproc-per-node 8 -m course.bridge.fsdp`. This package imports
nothing, so that a program that torchrun starts does not load tinyshard.
"""
