"""A stop, from the order to the last rung: the order on disk, the ladder as values, and carrying it out.

Whom a stop is for is found in ``targets.py``; whether there is one is decided in ``lifecycle.py``.
"""
