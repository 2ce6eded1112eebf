"""Named data sets, how they are divided among agents, and agents' records in memory."""
