"""Ops on Arrays outside of jit: each is a program of its own, found in a cache or made.

eager    one torch op: found in the cache or partitioned, then called on the devices
inplace  in-place ops: a user's are refused, those that torch makes on values of its own give handles new values
"""
