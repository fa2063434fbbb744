"""What a training that hangs is doing, and how its machine is: stacks and facts, gathered by a side process.

Nothing is stopped or signalled here.
"""
