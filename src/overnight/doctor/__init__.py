"""What of a machine could end or blind a run in the night, and what mends it: ``overnight doctor``.

Nothing is changed and no run is read.
"""
