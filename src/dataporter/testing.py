"""Proof, on a user's own loader, that it resumes exactly; for tests and for the command line.

from dataporter.testing import assert_resumes_exactly

def test_the_training_data_resumes():
    assert_resumes_exactly(make_loader)
"""

from dataporter.tools.verify import Cause, Check, Report, assert_resumes_exactly, verify

__all__ = ["Cause", "Check", "Report", "assert_resumes_exactly", "verify"]
