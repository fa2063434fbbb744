"""The morning page: what happened to a run, or in a log, as one value that text, JSON and HTML are made of.

``gather`` builds the value; ``words`` and ``advice`` find the sentences; ``text``, ``page`` and ``charts`` only draw
it. Reads run folders and logs, and changes nothing.
"""
