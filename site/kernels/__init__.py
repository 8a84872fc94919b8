"""The compiled decision rules of a site: pure functions over numpy arrays, each rule written once.

Both the batch simulation and `SiteCore` call these functions. docs/disciplines.md states the rules.
"""
