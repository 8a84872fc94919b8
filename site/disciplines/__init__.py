"""How a site schedules: one entry for each discipline."""
