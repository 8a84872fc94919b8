"""The registry of users' jobs, the admission of jobs, and the share of a site that its owner gives to the grid."""
