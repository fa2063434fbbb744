"""From which save a run goes on, whether what is saved is good, and whether a resume has gone on where it said.

The supervisor's side only. Nothing here starts or ends a training, and neither supervisor, attempts, facts nor cli is
known here.
"""
