"""How far and how fast a training moves on: from records to steps, seconds and tokens that count.

Pure: no clock, no file, no process. What the sums are divided by is not known here (``yardsticks/``), and neither is
what anybody makes of them.
"""
