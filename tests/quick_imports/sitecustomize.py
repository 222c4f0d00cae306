"""Python imports this as it starts: its folder stands first in PYTHONPATH of all that tests start.

An import makes many objects that stay. To look for garbage among them, again and again, takes a
fifth of the time of importing torch and a framework.
"""

import gc

gc.set_threshold(50_000)  # new objects, of which there were 700
