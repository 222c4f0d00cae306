"""Hashes of code: equal for what does the same; after an edit another one, or none."""

import collections
import datetime as dt
import functools
import hashlib
import importlib
import json
import math
import re
import subprocess
import sys
import urllib.parse

import numpy as np
import pytest
import torch

from dataporter.views.code_hash import UnknownCodeError, _release, code_hash

LIMIT = 5


def made(source, **names):
    """Compile a function named `f`, as if it stood in a module."""
    space = {"__name__": "somewhere", **names}
    exec(source, space)  # noqa: S102  the subject of these tests
    return space["f"]


def hash_or_nothing(function):
    try:
        return code_hash(function)
    except UnknownCodeError:
        return None


def closed_over(value):
    return lambda sample: sample == value


class Longer:
    def __init__(self, least):
        self.least = least

    def __call__(self, sample):
        return self.passes(sample)

    def passes(self, sample):
        return len(sample) > self.least


SLOTS = """class C:
    __slots__ = ("n",)
    def __init__(self, n): self.n = n
    def __call__(self, a): return a > self.n"""
FIELDS = """from dataclasses import dataclass
@dataclass
class C:
    n: int
    def __call__(self, a): return a > self.n"""
WRAPPED = """import functools
def wrapped(g):
    @functools.wraps(g)
    def h(a): return g(a)
    return h"""
ATTRIBUTES = "class C(dict):\n  __getattr__ = dict.__getitem__"
SHY = """class L(list):
    def __iter__(self): return iter(())
class D(dict):
    def items(self): return ()"""
ARRAY = "import numpy as np\nclass A(np.ndarray): pass\nt = np.zeros(1).view(A)"
SAME = {
    "names of locals": ("def f(a): return len(a) > 3", "def f(text): return len(text) > 3"),
    "lines and comments": ("def f(a): return a > 3", "\n\ndef f(a):\n    # why\n    return a > 3"),
}
EDITED = {
    "a constant": ("def f(a): return a > 3", "def f(a): return a > 4"),
    "an operator": ("def f(a): return a > 3", "def f(a): return a >= 3"),
    "an attribute": ("def f(a): return a.x > 3", "def f(a): return a.y > 3"),
    "a default": ("def f(a, n=3): return a > n", "def f(a, n=4): return a > n"),
    "a keyword's default": ("def f(a, *, n=3): return a > n", "def f(a, *, n=4): return a > n"),
    "a global": ("N = 3\ndef f(a): return a > N", "N = 4\ndef f(a): return a > N"),
    "a function beside it": (
        "def g(a): return a > 3\ndef f(a): return g(a)",
        "def g(a): return a > 4\ndef f(a): return g(a)",
    ),
    "a function inside of it": (
        "def f(a): return all(b > 3 for b in a)",
        "def f(a): return all(b > 4 for b in a)",
    ),
    "a global used inside of it": (
        "N = 3\ndef f(a): return all(b > N for b in a)",
        "N = 4\ndef f(a): return all(b > N for b in a)",
    ),
    "a class beside it": (
        "class C:\n  n = 3\ndef f(a): return a > C.n",
        "class C:\n  n = 4\ndef f(a): return a > C.n",
    ),
    "a static method": (
        "class C:\n  @staticmethod\n  def g(a): return a > 3\ndef f(a): return C.g(a)",
        "class C:\n  @staticmethod\n  def g(a): return a > 4\ndef f(a): return C.g(a)",
    ),
    "a class method": (
        "class C:\n  @classmethod\n  def g(c, a): return a > 3\ndef f(a): return C.g(a)",
        "class C:\n  @classmethod\n  def g(c, a): return a > 4\ndef f(a): return C.g(a)",
    ),
    "a property": (
        "class C:\n  @property\n  def n(self): return 3\ndef f(a): return a > C().n",
        "class C:\n  @property\n  def n(self): return 4\ndef f(a): return a > C().n",
    ),
    "what is called by inheritance": (
        "class B:\n  def __call__(self, a): return a > 3\nclass C(B): pass\nf = C()",
        "class B:\n  def __call__(self, a): return a > 4\nclass C(B): pass\nf = C()",
    ),
    "a metaclass": (
        "class M(type):\n  n = 3\nclass C(metaclass=M): pass\ndef f(a): return a > C.n",
        "class M(type):\n  n = 4\nclass C(metaclass=M): pass\ndef f(a): return a > C.n",
    ),
    "a slot": (
        f"{SLOTS}\nf = C(3)",
        f"{SLOTS}\nf = C(4)",
    ),
    "a field of a dataclass": (f"{FIELDS}\nf = C(3)", f"{FIELDS}\nf = C(4)"),
    "a field of a dataclass with slots": (
        f"{FIELDS.replace('@dataclass', '@dataclass(slots=True, frozen=True)')}\nf = C(3)",
        f"{FIELDS.replace('@dataclass', '@dataclass(slots=True, frozen=True)')}\nf = C(4)",
    ),
    "a method of a dataclass": (
        f"{FIELDS}\nf = C(3)",
        f"{FIELDS.replace('>', '>=')}\nf = C(3)",
    ),
    "a list of a class": (
        "class C:\n  n = [3]\ndef f(a): return a > C.n[0]",
        "class C:\n  n = [4]\ndef f(a): return a > C.n[0]",
    ),
    "a function in a table": (
        "T = {'g': lambda a: a > 3}\ndef f(a): return T['g'](a)",
        "T = {'g': lambda a: a > 4}\ndef f(a): return T['g'](a)",
    ),
    "a function's own attribute": (
        "def f(a): return a > f.n\nf.n = 3",
        "def f(a): return a > f.n\nf.n = 4",
    ),
    "a decorated function": (
        f"{WRAPPED}\n@wrapped\ndef f(a): return a > 3",
        f"{WRAPPED}\n@wrapped\ndef f(a): return a > 4",
    ),
    "a function that has the name of an installed one": (
        "import functools, operator\n@functools.wraps(operator.gt)\ndef f(a, b=3): return a > b",
        "import functools, operator\n@functools.wraps(operator.gt)\ndef f(a, b=3): return a >= b",
    ),
    "a method that an object keeps": (
        "class C:\n  def g(self, a): return a > 3\nm = C().g\ndef f(a): return m(a)",
        "class C:\n  def g(self, a): return a > 4\nm = C().g\ndef f(a): return m(a)",
    ),
    "an object in an object": (
        "class C: pass\nc = C()\nc.d = C()\nc.d.n = [3]\ndef f(a): return a > c.d.n[0]",
        "class C: pass\nc = C()\nc.d = C()\nc.d.n = [4]\ndef f(a): return a > c.d.n[0]",
    ),
    "a dict with a default": (
        "import collections\nd = collections.defaultdict(lambda: 3)\ndef f(a): return a > d[a]",
        "import collections\nd = collections.defaultdict(lambda: 4)\ndef f(a): return a > d[a]",
    ),
    "a subclass of list": (
        "class L(list): pass\nn = L([3])\ndef f(a): return a > n[0]",
        "class L(list): pass\nn = L([4])\ndef f(a): return a > n[0]",
    ),
    "a member of an enum": (
        "import enum\nclass E(enum.Enum):\n  A = 3\ndef f(a): return a > E.A.value",
        "import enum\nclass E(enum.Enum):\n  A = 4\ndef f(a): return a > E.A.value",
    ),
    "a named tuple": (
        "import collections\nn = collections.namedtuple('N', 'x')(3)\ndef f(a): return a > n.x",
        "import collections\nn = collections.namedtuple('N', 'x')(4)\ndef f(a): return a > n.x",
    ),
    "a type of constant": ("def f(a): return a == 1", "def f(a): return a == True"),
    "an entry of a dict that answers for missing attributes": (
        f"{ATTRIBUTES}\nc = C(n=3)\ndef f(a): return a > c.n",
        f"{ATTRIBUTES}\nc = C(n=4)\ndef f(a): return a > c.n",
    ),
    "what a list holds that shows nothing": (
        f"{SHY}\nn = L([3])\ndef f(a): return a > n[0]",
        f"{SHY}\nn = L([4])\ndef f(a): return a > n[0]",
    ),
    "what a dict holds that shows nothing": (
        f"{SHY}\nn = D(x=3)\ndef f(a): return a > n['x']",
        f"{SHY}\nn = D(x=4)\ndef f(a): return a > n['x']",
    ),
    "an attribute of an array": (
        f"{ARRAY}\nt.n = 3\ndef f(a): return a > t.n",
        f"{ARRAY}\nt.n = 4\ndef f(a): return a > t.n",
    ),
    "an attribute of a tensor": (
        "import torch\nt = torch.zeros(1)\nt.n = 3\ndef f(a): return a > t.n",
        "import torch\nt = torch.zeros(1)\nt.n = 4\ndef f(a): return a > t.n",
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_the_hash_is_the_same_for_other(what):
    one, other = map(made, SAME[what])
    assert code_hash(one) == code_hash(other)


@pytest.mark.parametrize("what", EDITED)
def test_the_hash_notices_a_change_of(what):
    one, other = map(made, EDITED[what])
    assert code_hash(one) != code_hash(other)


# Changes of these cannot be seen, whatever they do: there is no hash.
UNKNOWN = {
    "a cache": "import functools\n@functools.lru_cache\ndef g(a): return a\ndef f(a): return g(a)",
    "a dispatcher": (
        "import functools\n@functools.singledispatch\ndef g(a): return a\ndef f(a): return g(a)"
    ),
    "a file": "def f(a): return a in open('words').read()",
    "the environment": "import os\ndef f(a): return a in os.environ",
    "code made from text": "def f(a): return eval('a > 3')",
    "all globals": "def f(a): return globals()['g'](a)",
    "an import": "def f(a):\n  from helpers import g\n  return g(a)",
    "an import by its name": "import importlib\ndef f(a): return importlib.import_module('x').g(a)",
    "a generator": "n = (i for i in [3])\ndef f(a): return a > next(n)",
    "a lock": "import threading\nlock = threading.Lock()\ndef f(a):\n  with lock: return a > 3",
    "an object that pickles itself": (
        "class C:\n  n = 3\n  def __reduce__(self): return C, ()\nc = C()\ndef f(a): return a > c.n"
    ),
    "an object that pickles itself by a callable of another kind": (
        "import functools\nclass C: __getstate__ = functools.partial(dict)\n"
        "c = C()\nc.n = 3\ndef f(a): return a > c.n"
    ),
    "a file, by a module that is imported in it": (
        "def f(a):\n  from pathlib import Path\n  return a in Path('words').read_text()"
    ),
    "the environment, by a module that is imported in it": (
        "def f(a):\n  import os\n  return a in os.environ"
    ),
    "a module beside it that has the name of an installed one": (
        "def f(a):\n  from .json import g\n  return g(a)"
    ),
    "a compressed file": "import gzip\ndef f(a): return a in gzip.open('words').read()",
    "a function that opens files": "import codecs\ndef f(a): return a in codecs.open('words')",
    "a file, by the builtins": "import builtins\ndef f(a): return a in builtins.open('words')",
    "a file of numbers": "import numpy\ndef f(a): return a in numpy.loadtxt('numbers')",
    "a file, by a package that is imported in it": (
        "def f(a):\n  import numpy\n  return a in numpy.loadtxt('numbers')"
    ),
    "a file, by a package of a closure": (
        "import numpy\ndef made(m): return lambda a: a in m.fromfile('numbers')\nf = made(numpy)"
    ),
    "a file, by a function of a package": (
        "from torch import load as l, load\ndef f(a): return a in load('numbers')"
    ),
    "a database": "import sqlite3\ndef f(a): return a in sqlite3.connect('words')",
    "names of files": "import glob\ndef f(a): return a in glob.glob('*')",
    "the clock": "import time\ndef f(a): return a > time.time()",
    "the date": "import datetime\ndef f(a): return a > datetime.date.today()",
    "globals of another function": "def g(): pass\ndef f(a): return a > g.__globals__['N']",
    "classes that others register": "class B: pass\ndef f(a): return a in B.__subclasses__()",
    "annotations": "def f(a, n: 3 = 0): return a > f.__annotations__['n']",
    "a text of documentation": "class C: '3'\ndef f(a): return a > int(C.__doc__)",
    "a frame": "import inspect\ndef f(a): return a > inspect.currentframe().f_globals['N']",
    "pickled code": "import pickle\ndef f(a): return pickle.loads(b'c__main__\\ng\\n.')(a)",
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_there_is_no_hash_of_code_that_uses(what):
    with pytest.raises(UnknownCodeError, match=r"it uses .*, whose changes cannot be seen"):
        code_hash(made(UNKNOWN[what]))


HELPERS = """
{imports}
def g(a): return a > {number}
class C:
    @staticmethod
    def g(a): return a > {number}
"""
USES = {
    "a function of a module": "import helpers\ndef f(a): return helpers.g(a)",
    "a class of a module": "import helpers\ndef f(a): return helpers.C.g(a)",
    "a function by its own name": "from helpers import g\ndef f(a): return g(a)",
    "a module that is passed on": (
        "import helpers\ndef h(m, a): return m.g(a)\ndef f(a): return h(helpers, a)"
    ),
}


@pytest.mark.parametrize("what", USES)
def test_a_change_in_another_file_is_noticed_by_the_use_of(what, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    hashes = []
    for number in (3, 14):
        (tmp_path / "helpers.py").write_text(HELPERS.format(imports="", number=number))
        monkeypatch.delitem(sys.modules, "helpers", raising=False)
        importlib.invalidate_caches()
        hashes.append(hash_or_nothing(made(USES[what])))
    assert hashes[0] != hashes[1] or hashes[0] is None
    assert (hashes[0] is None) is (what == "a module that is passed on")


def test_the_reason_names_the_way_to_what_is_unknown():
    source = "import threading\nclass C: pass\nc = C()\nc.lock = threading.Lock()"
    with pytest.raises(UnknownCodeError, match=r"it uses .*\.lock \(by g\.c\)"):
        code_hash(made(f"{source}\ndef g(a): return c\ndef f(a): return g(a)"))


COMMON = {
    "a function beside it": Longer(3).passes,
    "columns": lambda row: len(row["text"]) > 100 and row["text"].strip().isascii(),
    "a set": lambda row: row["id"] not in {1, 2},
    "JSON": lambda row: json.loads(row["meta"])["score"] > LIMIT,
    "a pattern": lambda row: re.search("[a-z]", row["text"]) is not None,
    "the host of a URL": lambda row: urllib.parse.urlsplit(row["url"]).netloc == "example.org",
    "a date": lambda row: dt.datetime.fromisoformat(row["day"]).year >= 2020,
    "words": lambda row: collections.Counter(row["text"].split()).most_common(1)[0][1] < LIMIT,
    "a digest": lambda row: hashlib.sha256(row["text"].encode()).digest()[0] < 16,
    "arrays and tensors": lambda row: float(np.mean(row["x"])) > 0 and torch.isfinite(row["y"]),
    "an image": lambda row: min(row["image"].size) >= 256,
}


@pytest.mark.parametrize("what", COMMON)
def test_common_predicates_have_hashes(what):
    assert code_hash(COMMON[what]) == code_hash(COMMON[what])


def test_a_package_that_is_installed_again_under_the_same_version_is_noticed(tmp_path, monkeypatch):
    def install(number):
        folder = tmp_path / str(number) / "site-packages"
        about = folder / "own_package-1.0.dist-info"
        about.mkdir(parents=True)
        (folder / "own_package.py").write_text(f"def g(a): return a > {number}")
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own_package\nVersion: 1.0\n")
        (about / "RECORD").write_text(f"own_package.py,sha256={number},20\n")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "own_package", raising=False)
        importlib.invalidate_caches()
        _release.cache_clear()  # of one process, in which nothing is installed again
        return code_hash(made("import own_package\ndef f(a): return own_package.g(a)"))

    assert install(3) != install(4)


def test_installed_packages_count_by_name_and_version():
    def f(a):
        return np.sum(a) + math.pi > torch.relu(a) and re.match("a", a)

    assert code_hash(f) == code_hash(f)
    assert code_hash(np.add, np.float32, torch.float32) == code_hash(
        np.add, np.float32, torch.float32
    )


def test_a_dataset_may_read_files_and_hold_much():
    class Data:
        def __init__(self, values, least):
            self.values, self.least = values, least

        def __getitem__(self, index):
            return open(self.values[index]).read()  # noqa: PTH123

    many = np.arange(1 << 18)
    others = many + 1
    first = code_hash(Data(many, 3), is_data=True)
    assert code_hash(Data(many.copy(), 3), is_data=True) == first
    assert code_hash(Data(others, 3), is_data=True) != first
    assert code_hash(Data(many, 4), is_data=True) != first
    with pytest.raises(UnknownCodeError, match="open"):
        code_hash(Data(many, 3))


def test_a_dataset_may_not_make_code_of_text():
    class Data:
        def __getitem__(self, index):
            return eval(f"{index} + 1")  # noqa: S307

    with pytest.raises(UnknownCodeError, match=r"uses eval\(\) \(by __getitem__.eval\)"):
        code_hash(Data(), is_data=True)


VALUES = [
    *(None, 1, 1.0, "1", b"1", (1,), [1], {1}, {1: 2}, {1: 3}, [1, 2], [2, 1], range(3)),
    *(np.int64(1), np.arange(3), np.arange(3.0), np.arange(4), torch.arange(3), torch.ones(3)),
    *(re.compile("a"), re.compile("a", re.IGNORECASE), math.sin, math, len, Longer, Longer(3)),
    *(Longer(4), functools.partial(pow, 2), functools.partial(pow, 3), Longer(3).passes),
]


def test_every_value_of_a_closure_counts():
    hashes = [code_hash(closed_over(value)) for value in VALUES]
    assert len(set(hashes)) == len(VALUES)
    again = [code_hash(closed_over(value)) for value in VALUES]
    assert hashes == again


def test_callables_of_all_kinds_have_hashes():
    kinds = [Longer(3), Longer(4), Longer(3).passes, functools.partial(pow, 2), str.isdigit, len]
    assert len({code_hash(kind) for kind in kinds}) == len(kinds)


def test_what_refers_to_itself_has_a_hash():
    around = [1]
    around.append(around)
    assert code_hash(closed_over(around)) == code_hash(closed_over(around))

    def f(sample):
        return f(sample - 1) if sample else LIMIT > 3

    assert code_hash(f) == code_hash(f)


def test_the_hash_is_the_same_in_every_process():
    script = (
        "from dataporter.views.code_hash import code_hash\n"
        "words = {'a', 'b', 'c', 'd'}\n"
        "print(code_hash(lambda text: text in words and text in {'x', 'y', 'z'}))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in "12"
    ]
    one, other = (process.communicate()[0] for process in processes)
    assert one == other != ""
