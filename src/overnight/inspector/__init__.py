"""What lies on a disk as checkpoints, of any maker: is it whole, unharmed, finite, and how far had the training come.

Nothing is ever unpickled, and no file is believed: what is read is bounded in size, time and memory. Neither torch nor
numpy enters here: the inspector also looks at what was made on another machine, by other versions.
"""
