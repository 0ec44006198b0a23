"""The former names of some of `agreement`, until cli/model, results/reading and report/collect import those."""

from factorized_fl.silo.agreement import ALONE, COORDINATOR, FEDERATION, RUN, read_kit

__all__ = ["ALONE", "COORDINATOR", "FEDERATION", "RUN", "read_kit"]
