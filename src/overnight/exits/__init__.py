"""Why a command ended that nobody had asked to end: its exit, the last lines of its log, the words of the kernel.

What follows from a cause is decided in ``lifecycle.py``.
"""
