"""A training that is killed and resumed on other ranks, and compared with one that was not."""

from dataporter.tools.demo.runs import Story, run_demo

__all__ = ["Story", "run_demo"]
