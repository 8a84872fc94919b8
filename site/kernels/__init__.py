"""A site's compiled decision rules: pure functions on numpy arrays, with each rule implemented once.

Both the batch simulation and `SiteCore` call these functions. docs/disciplines.md describes the rules.
"""
