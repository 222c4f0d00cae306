"""Proof that a user's own loader resumes exactly; for tests and for the command line.

The proof needs no extra. The run at another time, and the clock as a cause, need the `cli` extra.

from dataporter.testing import assert_resumes_exactly

def test_the_training_data_resumes():
    assert_resumes_exactly(make_loader)
"""

from dataporter.tools.verify import Cause, Check, Present, Report, assert_resumes_exactly, verify

__all__ = ["Cause", "Check", "Present", "Report", "assert_resumes_exactly", "verify"]
