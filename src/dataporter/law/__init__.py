"""The law: the sample at each position, a pure function of (seed, epoch, position).

Nothing here knows torch, processes or files. `keys` derives keys, `permutation` is the
shuffle, `orders` are the orders a run can have, `plan` shares an order among ranks.
"""

from dataporter.law.datasets import OrderedDataset
from dataporter.law.orders import (
    Order,
    SequentialOrder,
    ShuffledOrder,
    Uses,
    WeightedOrder,
)
from dataporter.law.permutation import Permutation
from dataporter.law.plan import Plan, Tail, located
from dataporter.law.ranks import Ranks, Topology

__all__ = [
    "Order",
    "OrderedDataset",
    "Permutation",
    "Plan",
    "Ranks",
    "SequentialOrder",
    "ShuffledOrder",
    "Tail",
    "Topology",
    "Uses",
    "WeightedOrder",
    "located",
]
