"""Who is told of what happens to a run: each hook once, in a process of its own, and the guard before --on-end.

Nothing here changes the run.
"""
