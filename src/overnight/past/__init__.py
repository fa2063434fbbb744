"""Looking back: a finished log once more through the monitor, with the clock of that night, under any rules.

``rereading`` feeds the bytes, ``times`` and ``clock`` say when, ``replay`` judges, ``comparing`` sets it beside that
night, ``replayed`` makes one plain dict of it. Reads run folders and logs, and changes nothing.
"""
