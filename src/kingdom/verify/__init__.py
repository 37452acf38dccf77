"""Kill and check: real processes over a throwaway store, a nemesis, a history, and a checker that can fail."""

from kingdom.verify.finding import Finding, Kind
from kingdom.verify.report import Report
from kingdom.verify.trial import Plan, verify

__all__ = ["Finding", "Kind", "Plan", "Report", "verify"]
