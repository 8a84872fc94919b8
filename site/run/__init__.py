"""Turn a job's start into orders for machines."""
