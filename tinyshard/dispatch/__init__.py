"""Ops on Arrays outside of jit: each is a program, found in a cache or compiled.

eager    one torch op: found in the cache or partitioned, then called on the devices
inplace  in-place ops: the user's are refused, torch's on its own values give handles new values
"""
