"""A dataset over a table of pandas, with a defect."""

import pandas as pd
from planted import loader
from planted_causes import Slotted


class Table(Slotted):
    def __init__(self) -> None:
        super().__init__()
        self.table = pd.DataFrame({"x": range(len(self))})

    def __getitem__(self, index):
        return int(self.table.x[index]), super().__getitem__(index)


def make_loader():
    return loader(Table())
