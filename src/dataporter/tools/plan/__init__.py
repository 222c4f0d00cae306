"""A run over data in files, planned from its index alone: reads, cache, times, shuffle.

The order, its dealing and the rule of the cache are functions of the index. So what the nodes of a
run will fetch and hold can be computed before it starts, and nothing of the data is read.
"""
