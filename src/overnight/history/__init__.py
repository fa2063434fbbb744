"""metrics.db: what was read, in a form that answers quickly. No view knows the supervisor, and nothing here decides.

``store`` writes (one writer: the supervisor, or whoever rebuilds the file), ``chunks`` is the form of the numbers,
``views`` is how everybody else reads them.
"""
