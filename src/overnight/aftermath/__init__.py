"""All that has to be over before anything else may begin once a command has ended: nothing left of it, its GPUs free.

What the end means, and whether there is another attempt, is not decided here.
"""
