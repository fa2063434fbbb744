"""The demonstration: real training on the CPU, and everything that matters in a night done to it."""
