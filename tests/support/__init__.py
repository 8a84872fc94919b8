"""Helpers that several tests share; each module says what it is for.

Input: `builders`. Decision code in steps and in virtual time: `stepping`, `fakes`, `live_world`. Live grids: `gateway`,
`live_grids`, `actors`, `web`, `machine`. Batch systems: `slurm`, `accounts_site`. Commands and packages: `commands`,
`containers`. Results: `checks`. A helper that only one test file needs belongs into that file.
"""
