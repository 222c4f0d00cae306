"""One lane, shared by passes that one process reads side by side."""

from streamed import StatefulShards

from dataporter import ResumableDataLoader


class Told(StatefulShards):
    """Is told its epoch, and shows it in every sample."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def shown(self, sample):
        return self.epoch, sample


def test_passes_side_by_side_each_read_their_own_epoch():
    loader = ResumableDataLoader(Told([3]), batch_size=None)
    both = iter(loader), iter(loader)
    epochs, samples = zip(*(next(both[turn]) for turn in (0, 1, 0, 1, 1, 0)), strict=True)
    assert epochs == (0, 1, 0, 1, 1, 0)
    assert samples == (0, 0, 1, 1, 2, 2)
