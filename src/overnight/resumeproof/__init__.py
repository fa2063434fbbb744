"""The proof that a training resumes exactly: run it unbroken and stopped, compare, say what is missing.

Nothing enters the file itself: each step of the proof has a file of its own in this folder.
"""
