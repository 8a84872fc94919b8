"""The gateway: what users and operators reach of a live grid over HTTP."""
