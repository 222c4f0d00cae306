"""PatchedDataLoader's document: every snippet runs, and its stated limit is none here."""

import torch
from launching import outputs_of_two_ranks
from support import Augmented, flat, one_pass, plain
from torch.utils.data import DataLoader as TorchDataLoader

from dataporter.patched_dataloader import PatchedDataLoader as DataLoader


def test_easy_to_use():
    train_dataset = torch.arange(128)
    loader = DataLoader(train_dataset, batch_size=32, shuffle=True, num_workers=4)
    assert isinstance(loader, TorchDataLoader)
    assert sorted(flat(one_pass(loader))) == list(range(128))


def test_state_dict_and_load_state_dict():
    loader = DataLoader(list(range(15)), batch_size=5, shuffle=True)

    first, second = [], []
    for i, data in enumerate(loader):
        first.append(data.tolist())
        if i == 2:
            state = loader.state_dict()
            break

    loader.load_state_dict(state)
    for _, data in enumerate(loader):
        second.append(data.tolist())

    # The state was taken at the last batch: nothing is left, and then comes a whole epoch.
    assert sorted(flat(first)) == list(range(15))
    assert second == []
    assert sorted(flat(one_pass(loader))) == list(range(15))


def test_the_shuffle_is_deterministic_without_a_seed():
    orders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        loader = DataLoader(list(range(100)), batch_size=32, shuffle=True)
        orders.append(one_pass(loader))
    assert orders[0] == orders[1]


SHARDED = """
import sys
import torch
import torch.distributed as dist
from dataporter.patched_dataloader import PatchedDataLoader as DataLoader

dist.init_process_group('gloo', init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
train_dataset = torch.arange(128)
loader = DataLoader(train_dataset, batch_size=32, shuffle=True)
for batch in loader:
    print(*batch.tolist())
dist.barrier()  # else a quick rank may leave while the other is still connecting to it
dist.destroy_process_group()
"""


def test_additional_benefits_the_same_code_for_one_process_and_several(tmp_path):
    outputs = outputs_of_two_ranks(SHARDED, tmp_path)
    shares = [[int(number) for number in out.split()] for out in outputs]
    assert [len(share) for share in shares] == [64, 64]
    assert sorted(flat(shares)) == list(range(128))


def test_limitations_are_none_augmentation_is_recovered_with_workers():
    options = {"batch_size": 4, "shuffle": True, "num_workers": 2}
    loader = DataLoader(Augmented(40), **options)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    resumed = DataLoader(Augmented(40), **options)
    resumed.load_state_dict(loader.state_dict())
    assert one_pass(resumed) == [plain(batch) for batch in batches]
