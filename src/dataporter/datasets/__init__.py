"""Datasets of other libraries, as samples and batches with chosen dtypes.

from dataporter.datasets import HFDatasetWrapper

dataset = HFDatasetWrapper(hf_dataset, dtype_conversions={"label": "int32"})
loader = ResumableDataLoader(dataset, batch_size=16, collate_fn=dataset.collate_fn)
"""

from dataporter.datasets.huggingface import HFDatasetWrapper

__all__ = ["HFDatasetWrapper"]
