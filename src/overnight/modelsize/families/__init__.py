"""One file for each group of model families. A family says how its layers are built; adding up is elsewhere."""
