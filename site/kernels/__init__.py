"""The decision rules of a site, compiled: pure functions over numpy arrays, each rule written once.

The batch simulation and `SiteCore` both call these functions; docs/disciplines.md states the rules.
"""
