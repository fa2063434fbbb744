"""What people ask of a run: what was asked at its launch, and the stops, notes and changes that came since.

What a request leads to is decided in ``lifecycle.py``.
"""
