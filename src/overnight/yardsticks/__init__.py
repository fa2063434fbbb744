"""What the figures of a run are divided by, where each number is from, and what would make an unknown one known.

Model size, tokens of a step, peak, price. Nothing is measured here, and nothing is guessed.
"""
