"""The registry of users' jobs, their admission, and the share that the owner gives to the grid."""
