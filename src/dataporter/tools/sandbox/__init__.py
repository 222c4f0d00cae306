"""The sandbox: a user's loader factory, run elsewhere and under other conditions.

A `Job` travels to a process that has imported the factory, makes a loader there and uses it.
`verify`, `profile` and tuning are jobs; nothing else in the tools starts processes for users' code.
"""

from dataporter.tools.sandbox.conditions import USUAL, Conditions
from dataporter.tools.sandbox.processes import ProcessEndedError, TimeUpError
from dataporter.tools.sandbox.sandbox import Problem, Sandbox

__all__ = ["USUAL", "Conditions", "Problem", "ProcessEndedError", "Sandbox", "TimeUpError"]
