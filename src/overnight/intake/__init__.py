"""The eyes and the memory of a supervisor: log and samples to records, judged by the monitor and stored exactly once.

Nothing is decided about the run.
"""
