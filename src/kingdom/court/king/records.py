"""The record kinds that the King writes."""

from kingdom.court.followups.polls import PULL_POLLS
from kingdom.court.followups.records import FOLLOWUPS
from kingdom.court.king.costs import DAILY_COSTS
from kingdom.court.king.release import BILLS
from kingdom.court.king.schedules import SCHEDULES
from kingdom.court.king.waiting_queue import NEWEST, WAITING_ENTRIES
from kingdom.court.questions import QUESTIONS
from kingdom.court.quota import QUOTAS

KINDS = (WAITING_ENTRIES, NEWEST, BILLS, DAILY_COSTS, SCHEDULES, QUOTAS, QUESTIONS, FOLLOWUPS, PULL_POLLS)
