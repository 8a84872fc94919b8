"""The meta-scheduler, which schedules jobs across sites."""
