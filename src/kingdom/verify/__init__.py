"""Kill and check: real processes over a throwaway store, a nemesis, a history, and a checker that can fail."""

from kingdom.verify.report import TrialReport
from kingdom.verify.trial import TrialPlan, verify
from kingdom.verify.violation import Violation, ViolationKind

__all__ = ["TrialPlan", "TrialReport", "Violation", "ViolationKind", "verify"]
