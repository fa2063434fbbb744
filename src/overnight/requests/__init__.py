"""What is asked of a run, as values: what was asked at its launch, and what may be changed of it since.

How requests come in is the supervisor's affair; what a stop leads to is decided in ``lifecycle.py``.
"""
