"""Turn the start of a job into orders for machines."""
