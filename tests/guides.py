"""Guides in docs/: their code is that of the examples, which the tests run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The guide of each framework, and the example that is its whole script. The tests of an example
# start its framework.
FRAMEWORKS = {
    "accelerate.md": "accelerate_loop.py",
    "cluster.md": "ray_workers.py",
    "lightning.md": "lightning_pause.py",
    "ray.md": "ray_train.py",
    "torch_checkpoint.md": "dcp_fsdp.py",
    "torchrun.md": "elastic.py",
    "transformers.md": "transformers_trainer.py",
}


def blocks(guide: str, kind: str) -> list[str]:
    """The code blocks of one kind, in their order."""
    text = (ROOT / "docs" / guide).read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [code for its_kind, code in found if its_kind == kind]


def lines_of(code: str) -> list[str]:
    """Lines as they are, but for indentation, comments and empty ones."""
    bare = (line.strip() for line in code.splitlines())
    return [line for line in bare if line and not line.startswith("#")]


def lines_that_an_example_lacks(example: str, code: str) -> list[str]:
    """Lines of a guide's code that are not in an example."""
    known = set(lines_of((ROOT / "examples" / example).read_text()))
    return [line for line in lines_of(code) if line not in known]


def is_in_example(example: str, command: str) -> bool:
    """Whether an example's description has a guide's command, on however many lines."""
    known = " ".join((ROOT / "examples" / example).read_text().split())
    return " ".join(command.split()) in known
