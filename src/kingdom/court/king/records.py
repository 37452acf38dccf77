"""The kinds of record that only the King writes, and those that he shares with others."""

from kingdom.court.asks import ASKS
from kingdom.court.king.resting import BILLS
from kingdom.court.king.schedules import SCHEDULES
from kingdom.court.king.waiting import NEWEST, PLACES
from kingdom.court.quota import QUOTAS

KINDS = (PLACES, NEWEST, BILLS, SCHEDULES, QUOTAS, ASKS)
