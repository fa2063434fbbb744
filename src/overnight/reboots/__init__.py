"""What the new start of a machine does to a run: noticing it, bringing the run back, and having that done unasked."""
