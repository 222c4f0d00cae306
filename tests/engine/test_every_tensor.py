"""Tensors of every dtype in every layout: a worker gives what torch's loader does, or its error."""

import itertools
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dataporter import ResumableDataLoader, WorkerDiedError

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, on half of these layouts

DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)
QUANTISED = [dtype for dtype in DTYPES if str(dtype).startswith(("torch.qint", "torch.quint"))]


def dense(dtype: torch.dtype) -> torch.Tensor:
    ones = torch.arange(24 * dtype.itemsize).remainder(2).to(torch.uint8)
    return ones.view(dtype).view(6, -1)


def inference(dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode():
        return dense(dtype).clone()


def by_channel(dtype: torch.dtype, axis: int) -> torch.Tensor:
    count = (6, 4)[axis]
    scales, zeros = torch.arange(1, count + 1) / 8, torch.zeros(count, dtype=torch.long)
    return torch.quantize_per_channel(torch.arange(24.0).view(6, 4), scales, zeros, axis, dtype)


LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "dense": dense,
    "of one dimension": lambda dtype: dense(dtype)[:, 0],
    "without elements": lambda dtype: torch.empty(6, 0, dtype=dtype),
    "transposed": lambda dtype: dense(dtype).t().contiguous().t(),
    "expanded": lambda dtype: dense(dtype)[:, :1].expand(6, 5),
    "requires grad": lambda dtype: dense(dtype).clone().requires_grad_(),
    "of inference mode": inference,
    "parameter": lambda dtype: torch.nn.Parameter(dense(dtype), requires_grad=False),
    "conjugate": lambda dtype: dense(dtype).conj(),
    "negative": lambda dtype: torch._neg_view(dense(dtype)),
    "meta": lambda dtype: dense(dtype).to("meta"),
    "COO": lambda dtype: dense(dtype).to_sparse(),
    "hybrid COO": lambda dtype: dense(dtype).to_sparse(1),
    "CSR": lambda dtype: dense(dtype).to_sparse_csr(),
    "CSC": lambda dtype: dense(dtype).to_sparse_csc(),
    "BSR": lambda dtype: dense(dtype).to_sparse_bsr((2, 2)),
    "BSC": lambda dtype: dense(dtype).to_sparse_bsc((2, 2)),
    "MKL-DNN": lambda dtype: dense(dtype).to_mkldnn(),
    "nested": lambda dtype: torch.nested.nested_tensor(list(dense(dtype).unbind())),
    "jagged": lambda dtype: torch.nested.nested_tensor(
        list(dense(dtype).unbind()), layout=torch.jagged
    ),
}
# Of other dtypes, asking for these ends the process in torch itself.
QUANTISATIONS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "quantised": lambda dtype: torch.quantize_per_tensor(
        torch.arange(24.0).view(6, 4), 0.5, 0, dtype
    ),
    "quantised by rows": lambda dtype: by_channel(dtype, 0),
    "quantised by columns": lambda dtype: by_channel(dtype, 1),
}


@cache
def tensors() -> list[tuple[str, torch.Tensor]]:
    """Every combination that torch can make."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layouts, dtypes in ((LAYOUTS, DTYPES), (QUANTISATIONS, QUANTISED)):
            for (layout, make), dtype in itertools.product(layouts.items(), dtypes):
                # Raised for what torch does not have.
                with suppress(RuntimeError, NotImplementedError, TypeError):
                    found.append((f"{layout} {dtype}", make(dtype)))
    return found


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that one consists of."""
    if tensor.is_quantized:
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            scale = [torch.tensor([tensor.q_scale(), tensor.q_zero_point()])]
        else:
            scale = [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]
        return [tensor.int_repr(), *scale]
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.to_dense()] if tensor.is_mkldnn else []


def told(thing: Any) -> Any:
    """A batch, or an error, as something that == compares to the last bit."""
    if isinstance(thing, dict):
        return {name: told(part) for name, part in thing.items()}
    if isinstance(thing, list):
        return [told(part) for part in thing]
    if not isinstance(thing, torch.Tensor):
        return type(thing) if isinstance(thing, Exception) else thing
    tensor = thing.detach()
    kind = (type(thing), thing.dtype, thing.layout, thing.requires_grad, thing.device)
    if tensor.is_meta:
        return kind, tuple(tensor.shape)
    if inner := parts(tensor):
        return kind, told(inner)
    flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1)
    return kind, tuple(tensor.shape), flat.view(torch.uint8).tolist() if flat.numel() else []


def outcomes(loader: Iterable[Any]) -> list[Any]:
    """Each batch, or the error in its place."""
    found = []
    batches = iter(loader)
    while True:
        try:
            found.append(told(next(batches)))
        except StopIteration:
            return found
        except WorkerDiedError:
            raise  # or it would be tried again, and again
        except Exception as error:  # noqa: BLE001  whatever it is, it is what is compared
            found.append(told(error))


def check(name: str, found: Any, by_torch: Any, by_torchs_worker: Any = None) -> None:
    """Fail unless a batch is torch's, or an error where torch has one.

    Torch refuses some in a worker only, and cannot stack some that can be gathered.
    """
    if isinstance(found, type):
        assert found is by_torch or isinstance(by_torchs_worker, type), name
    else:
        assert found == by_torch or by_torch is NotImplementedError, name


def test_samples_of_every_dtype_and_layout_are_collated_in_a_worker_as_in_torch():
    samples: list[Any] = []
    names, batches = [], []
    for name, tensor in tensors():
        rows: list[Any] = []
        # What cannot be indexed is there only as a whole.
        with suppress(RuntimeError, NotImplementedError, TypeError, IndexError):
            rows = [tensor[row] for row in range(4)]
        for batch in (rows, [{"x": row, "y": 1} for row in rows], [tensor, tensor]):
            if batch:
                names.append(name)
                batches.append(range(len(samples), len(samples) + len(batch)))
                samples += batch
    assert len(batches) > 1000
    ours = ResumableDataLoader(samples, batch_sampler=batches, num_workers=1, max_restarts=0)
    theirs = (DataLoader(samples, batch_sampler=batches, num_workers=n) for n in (0, 1))
    for each in zip(names, outcomes(ours), *map(outcomes, theirs), strict=True):
        check(*each)


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_of_every_dtype_and_layout_are_gathered_as_in_torch(workers):
    for name, tensor in tensors():
        # A worker is started for each: a few dtypes are enough.
        if workers and tensor.dtype not in (torch.float32, torch.qint32, torch.quint4x2):
            continue
        with suppress(RuntimeError, NotImplementedError, TypeError):  # without a length
            dataset = TensorDataset(tensor)
            ours = ResumableDataLoader(dataset, 4, num_workers=workers, max_restarts=0)
            theirs = DataLoader(dataset, 4)
            for found, expected in zip(outcomes(ours), outcomes(theirs), strict=True):
                check(name, found, expected)
