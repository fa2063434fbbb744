"""The parts of the supervisor, each with one concern of its loop; ``supervisor.py`` joins them.

Only here do decisions meet effects. Nothing else may import these rooms to decide anything about a run.
"""
