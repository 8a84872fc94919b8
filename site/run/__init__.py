"""From a job that starts to orders for machines."""
