"""The checkpoints of a training as they are seen from outside: names, growth, and how long a save takes.

No file is opened: what one is worth says ``inspector/``, which one to go on from ``resumption/``.
"""
