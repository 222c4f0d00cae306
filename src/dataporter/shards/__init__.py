"""Datasets that lie in many files: shuffled well, read by index, resumed by a seek.

`ShardedDataset` is a map-style dataset that brings an order of its own. `index` is the table of
all blocks, `tracks` the order, `formats/` read the files, `reading` opens blocks, and the porter
decodes the blocks that cannot be read by mmap.
"""
