"""Proof that a loader resumes exactly: it is interrupted everywhere, and the rest is compared."""

from dataporter.tools.verify.report import Cause, Check, Present, Report
from dataporter.tools.verify.verification import assert_resumes_exactly, verify

__all__ = ["Cause", "Check", "Present", "Report", "assert_resumes_exactly", "verify"]
