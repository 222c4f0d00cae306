"""A training that is killed and resumed on other processes, and compared with one that was not."""

from dataporter.tools.demo.runs import Story, tell

__all__ = ["Story", "tell"]
