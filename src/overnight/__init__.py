"""Overnight keeps a training run going while nobody watches, and shows in the morning what happened.

Only the version lives here, so that importing the package costs nothing.
"""

__version__ = "0.1.0"
