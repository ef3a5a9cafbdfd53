"""What carries calls between parties. Algorithms do not know which one it is."""

from colonnade.transport.cohort import Cohort, Cohorts, groups, worth_stacking
from colonnade.transport.faulty import Fault, Faulty
from colonnade.transport.in_process import InProcess, Recording
from colonnade.transport.retrying import Retrying

__all__ = [
    "Cohort",
    "Cohorts",
    "Fault",
    "Faulty",
    "InProcess",
    "Recording",
    "Retrying",
    "groups",
    "worth_stacking",
]
