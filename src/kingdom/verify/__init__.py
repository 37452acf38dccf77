"""Verify the bus: run real processes on a trial store, inject faults, record a history and check it."""

from kingdom.verify.report import TrialReport
from kingdom.verify.trial import TrialPlan, verify
from kingdom.verify.violation import Violation, ViolationKind

__all__ = ["TrialPlan", "TrialReport", "Violation", "ViolationKind", "verify"]
