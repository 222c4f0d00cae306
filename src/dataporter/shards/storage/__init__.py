"""Files that lie elsewhere: listed, and fetched range by range, through faults.

It is used in processes that never fork: the porter, and the one that indexes. Network clients do
not survive a fork.
"""
